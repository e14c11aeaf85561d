"""One running request as the scheduler sees it: how far it is, and whether its tokens end it."""

from hotdraft.serving.decoding.adaptive_k import AcceptanceEstimate
from hotdraft.serving.decoding.rounds import Round
from hotdraft.serving.engine.output import Output
from hotdraft.serving.messages.request import FinishReason, GenerationRequest


class Sequence:
    def __init__(
        self, output: Output, *, seed: int, eos_ids: frozenset[int], acceptance: AcceptanceEstimate
    ) -> None:
        self.request: GenerationRequest = output.request
        self.output = output
        self.seed = seed
        self.acceptance = acceptance
        self.left = output.request.params.max_tokens
        """Tokens it may still be given."""
        self.last_round: float | None = None
        """When its last tokens were there, by `time.perf_counter`."""
        self._eos_ids = frozenset() if output.request.params.ignore_eos else eos_ids

    def advance(self, outcome: Round, row: int) -> tuple[int, FinishReason | None]:
        """How many of a round's tokens the request takes, and the reason if it ends with the last of them."""
        if not outcome.target_is_sound[row]:
            return 0, "error"
        count = min(int(outcome.num_accepted[row]) + 1, self.left)
        reason: FinishReason | None = "length" if count == self.left else None
        for index, token in enumerate(outcome.token_ids[row, :count].tolist()):
            if token in self._eos_ids:
                count, reason = index + 1, "stop"
                break
        self.left -= count
        return count, reason
