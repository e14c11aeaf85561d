"""One running request as the scheduler sees it: how far it is, and whether its tokens end it."""

from collections.abc import Callable
from functools import cached_property

import numpy as np

from hotdraft.serving.decoding.guessing import matched
from hotdraft.serving.decoding.outlook import Outlook
from hotdraft.serving.decoding.rounds import Round
from hotdraft.serving.engine.output import Output
from hotdraft.serving.messages.request import FinishReason, GenerationRequest
from hotdraft.serving.proposers.acceptance import Estimates
from hotdraft.serving.proposers.suffixes import Guess
from hotdraft.serving.sampling.logits import Withheld


class Sequence:
    def __init__(
        self,
        output: Output,
        *,
        seed: int,
        eos_ids: frozenset[int],
        estimates: Callable[[], Estimates],
    ) -> None:
        """`estimates` are asked for in its first round, if it comes to that."""
        self.request: GenerationRequest = output.request
        self.output = output
        self.seed = seed
        self.is_drafted = True
        """Whether the draft model is asked for it."""
        self.is_drafted_alone = False
        """Whether nothing else is."""
        self.is_read_alone = False
        """Whether its prompt is, as it could not be read with others'."""
        self.saved = 0.0
        """Seconds that are expected to have been saved by what it drafted."""
        self.reading = 0.0
        """Seconds that it took to read the prompt."""
        self.left = output.request.params.max_tokens
        """Tokens it may still be given."""
        self.last_round: float | None = None
        """When its last tokens were there, by `time.perf_counter`."""
        self._new_estimates = estimates
        self._ends = output.request.params.ends(eos_ids)
        self.withheld = _withheld(output.request, eos_ids)
        """What would end it, until it has its `min_tokens`."""

    @cached_property
    def estimates(self) -> Estimates:
        return self._new_estimates()

    @property
    def may_be_read_together(self) -> bool:
        """Whether its prompt may, with others': what the target thinks of its tokens is read alone."""
        return not self.is_read_alone and self.output.prompt_log is None

    def outlook(self, guess: Guess) -> Outlook:
        """What the next round could propose, of which `guess` comes from text."""
        of = self.estimates
        rates = np.empty(0) if of.guessed is None else of.guessed.rates()[list(guess.kinds)]
        drafted = of.drafted.rates() if self.is_drafted else np.empty(0)
        alternatives = np.empty(0) if of.alternatives is None else of.alternatives.rates()
        return Outlook(rates, drafted, self.left - 1, self.is_drafted_alone, alternatives)

    def learn(self, outcome: Round, row: int, guess: Guess) -> None:
        """What became of a round's proposals, and of the `guess` before it, proposed or not.

        What the draft stopped before is neither: it costs as little as it brings, and to hold it for refused made
        drafting look dear beside text.
        """
        of = self.estimates
        accepted, guessed = int(outcome.num_accepted[row]), int(outcome.num_guessed[row])
        if accepted >= guessed:
            drafted = int(outcome.num_proposed[row]) - guessed
            of.drafted.observe(range(drafted), accepted - guessed)
            if of.alternatives is not None:
                of.alternatives.observe_choice(range(outcome.num_alternatives[row]), int(outcome.came[row]))
        if of.guessed is not None:
            came = outcome.token_ids[row, : outcome.num_new[row]].tolist()
            of.guessed.observe(guess.kinds[: len(came)], matched(guess.token_ids, came))

    def advance(self, outcome: Round, row: int) -> tuple[int, FinishReason | None]:
        """How many of a round's tokens the request takes, and the reason if it ends with the last of them."""
        if not outcome.target_is_sound[row]:
            return 0, "error"
        count = min(int(outcome.num_new[row]), self.left)
        reason: FinishReason | None = "length" if count == self.left else None
        for index, token in enumerate(outcome.token_ids[row, :count].tolist()):
            if token in self._ends:
                count, reason = index + 1, "stop"
                break
        self.left -= count
        if self.withheld and self.request.params.max_tokens - self.left >= self.request.params.min_tokens:
            self.withheld = None
        return count, reason


def _withheld(request: GenerationRequest, eos_ids: frozenset[int]) -> Withheld | None:
    """Ends of text too that it ignores, as vLLM has it."""
    params = request.params
    if not params.min_tokens:
        return None
    return Withheld(eos_ids | params.ends(eos_ids), len(request.prompt_ids) + params.min_tokens)
