"""What becomes of a request's tokens: its text, its statistics, and what is recorded of it.

All of it happens in the output thread, while the engine already runs the next round.
"""

import logging
import time
from collections.abc import Callable

import numpy as np

from hotdraft.pipeline.replay.sample import GUESSED, ReplaySample
from hotdraft.serving.decoding.rounds import Round
from hotdraft.serving.engine.detokenizer import Detokenizer
from hotdraft.serving.messages.request import (
    FinishReason,
    GenerationRequest,
    OutputDelta,
    RequestStats,
    TokenLogprob,
)
from hotdraft.serving.messages.stop_strings import StopMatcher
from hotdraft.serving.sampling.target_log import TargetLog

logger = logging.getLogger(__name__)


class Output:
    """The client's side of a request. Its client hears of a round by `send`, which calls `on_delta`."""

    def __init__(
        self,
        request: GenerationRequest,
        on_delta: Callable[[OutputDelta], None],
        detokenizer: Detokenizer,
        *,
        eos_id: int | None = None,
        record: bool = True,
        keeps_states: bool = False,
    ) -> None:
        """To end with `eos_id` needs no reason; another token that the engine ends the answer at is its reason."""
        self.request = request
        self.left_out = request.params.altered_by if request.record else "store"
        """Why no sample is kept: an altered answer does not follow the logged distributions."""
        if self.left_out is None and not record:
            self.left_out = "sample_rate"
        self.is_recorded = self.left_out is None
        self.prompt_log: list[TargetLog] | None = None if request.params.prompt_logprobs is None else []
        """What the target thought of the prompt, chunk by chunk, if the client asked; filled by the engine."""
        self.output_ids: list[int] = []
        self.admitted: float | None = None
        """When the request got its slot, by `time.perf_counter`."""
        self.finish_reason: FinishReason | None = None
        """Set once, when the client has been told; what is decoded after that is dropped."""
        self.keeps_states = keeps_states and self.is_recorded
        """Whether what the target's layers made of the request's tokens is kept for training."""
        self.states: np.ndarray | None = None
        """That, once its row has ended."""
        self.is_recorded_late = False
        """Whether a stop string ended it, so that its states are there only after its client has been told."""
        self._rounds = self._drafted = self._examined = self._accepted = 0
        self._first_examined = self._first_accepted = 0
        self._guessed = self._accepted_guesses = 0
        self._draft_version = 0
        self._on_delta = on_delta
        self._detokenizer = detokenizer
        self._stops = StopMatcher(request.params.stop_strings)
        self._held = ""
        """Text not yet sent because a stop string might begin in it."""
        self._unsent_ids: list[int] = []
        self._unsent_logprobs: list[TokenLogprob] | None = None if request.params.logprobs is None else []
        self._eos_id = eos_id
        self._stop_reason: str | int | None = None
        """The stop string that was found: what its last token began belongs to what was cut off. At the end the
        token, if no string did it."""
        self._log: list[tuple[np.ndarray, ...]] = []
        self._submitted = time.perf_counter()
        self._first_token: float | None = None

    def take(self, outcome: Round, row: int, length: int, draft_version: int) -> FinishReason | None:
        """Take the first `length` tokens of a round's row; the reason if a stop string ends the request."""
        accepted, proposed = int(outcome.num_accepted[row]), int(outcome.num_proposed[row])
        guessed = int(outcome.num_guessed[row])
        self._rounds += 1
        self._drafted += proposed - guessed
        self._guessed += guessed
        self._draft_version = draft_version
        if self._first_token is None:
            self._first_token = time.perf_counter()

        taken: list[int] = []
        stopped = False
        for token in outcome.token_ids[row, :length].tolist():
            taken.append(token)
            has_enough = len(self.output_ids) + len(taken) > self.request.params.min_tokens
            stopped = self._hold(self._detokenizer.step(token), may_stop=has_enough)
            if stopped:
                break
        examined_here = max(0, min(len(taken), proposed, accepted + 1) - guessed)
        accepted_here = max(0, min(len(taken), accepted) - guessed)
        self._examined += examined_here
        self._accepted += accepted_here
        self._first_examined += examined_here > 0
        self._first_accepted += accepted_here > 0
        self._accepted_guesses += min(len(taken), accepted, guessed)
        self.output_ids += taken
        self._unsent_ids += taken
        log = outcome.target_log
        if log is not None and self.is_recorded:
            self._keep(outcome, log, row, len(taken), draft_version)
        if self._unsent_logprobs is not None:
            assert log is not None
            self._unsent_logprobs += log.of_tokens(row, taken, self.request.params.logprobs or 0)
        return "stop" if stopped else None

    def send(self, reason: FinishReason | None) -> None:
        """Send new text, if there is any that no stop string may begin in; at the end all, with the reason.

        Where the client's `on_delta` raises, the request ends: `finish_reason` is "error" if it had none.
        """
        if reason and self._stop_reason is None:
            self._hold(self._detokenizer.finish())
            if reason == "stop" and self._stop_reason is None and self.output_ids[-1] != self._eos_id:
                self._stop_reason = self.output_ids[-1]
        text = self._held if reason else self._held[: len(self._held) - self._stops.possible]
        if not (text or reason):
            return
        self._held = self._held[len(text) :]
        ids, self._unsent_ids = tuple(self._unsent_ids), []
        logprobs = None
        if self._unsent_logprobs is not None:
            logprobs, self._unsent_logprobs = tuple(self._unsent_logprobs), []
        prompt_logprobs = self._take_prompt_logprobs()
        self._tell(OutputDelta(text, ids, reason, self.stats(), logprobs, prompt_logprobs, self._stop_reason))

    def fail(self) -> None:
        """End the request and say no more than that: what was left of it cannot be told."""
        self._tell(OutputDelta("", (), "error", self.stats()))

    def _tell(self, delta: OutputDelta) -> None:
        self.finish_reason = delta.finish_reason
        try:
            self._on_delta(delta)
        except Exception:
            logger.exception("request %s ends: its callback raised", self.request.request_id)
            self.finish_reason = delta.finish_reason or "error"

    def stats(self) -> RequestStats:
        now = time.perf_counter()
        admitted = self.admitted or now
        return RequestStats(
            prompt_tokens=len(self.request.prompt_ids),
            completion_tokens=len(self.output_ids),
            rounds=self._rounds,
            drafted_tokens=self._drafted,
            examined_tokens=self._examined,
            accepted_tokens=self._accepted,
            first_examined=self._first_examined,
            first_accepted=self._first_accepted,
            guessed_tokens=self._guessed,
            accepted_guesses=self._accepted_guesses,
            draft_version=self._draft_version,
            queued_seconds=admitted - self._submitted,
            time_to_first_token=self._first_token and self._first_token - self._submitted,
            total_seconds=now - self._submitted,
        )

    def sample(self) -> ReplaySample | None:
        """What the replay buffer keeps of the request; None if it was not to be recorded or was penalised."""
        if not self._log:
            return None
        top_ids, top_logprobs, tail, drafted, accepted, versions = (
            np.concatenate(column) for column in zip(*self._log, strict=True)
        )
        return ReplaySample(
            request_id=self.request.request_id,
            created_at=time.time(),
            domain=self.request.domain,
            temperature=self.request.params.temperature,
            prompt_ids=np.asarray(self.request.prompt_ids, np.int32),
            output_ids=np.asarray(self.output_ids, np.int32),
            target_top_ids=top_ids,
            target_top_logprobs=top_logprobs.astype(np.float16),
            target_tail_logprob=tail,
            drafted_ids=drafted,
            accepted=accepted,
            draft_versions=versions,
            top_p=self.request.params.top_p,
            top_k=self.request.params.top_k,
            min_p=self.request.params.min_p,
            salted=self.request.is_salted,
        )

    def _take_prompt_logprobs(self) -> tuple[TokenLogprob, ...] | None:
        """Those of the whole prompt, once; None if nobody asked or the prompt was not read to its end."""
        if self.prompt_log is None or self._rounds == 0:
            return None
        chunks, self.prompt_log = self.prompt_log, None
        first, *following = self.request.prompt_ids
        logprobs = [TokenLogprob(first, None, ())]
        for log in chunks:
            start = len(logprobs) - 1
            tokens = following[start : start + log.top_ids.shape[1]]
            logprobs += log.of_tokens(0, tokens, self.request.params.prompt_logprobs or 0)
        return tuple(logprobs)

    def _keep(self, outcome: Round, log: TargetLog, row: int, length: int, version: int) -> None:
        position = np.arange(length)
        accepted = position < outcome.num_accepted[row]
        drafted = np.where(position < outcome.num_guessed[row], GUESSED, outcome.proposed_ids[row, :length])
        drafted[position > outcome.num_accepted[row]] = GUESSED  # it followed a second choice, which is no miss
        self._log.append(
            (  # copies: a part would keep what the round logged of all rows
                log.top_ids[row, :length].copy(),
                log.top_logprobs[row, :length].copy(),
                log.tail_logprob[row, :length].copy(),
                drafted,
                accepted & (drafted >= 0),
                np.full(length, version, np.int32),
            )
        )

    def _hold(self, piece: str, *, may_stop: bool = True) -> bool:
        """Take new text in; whether a stop string is complete, which is then cut off with what follows."""
        found, before = self._stops.read(piece), len(self._held)
        self._held += piece
        if found is None or not may_stop:
            return False
        begins, ends = (before + place for place in found)
        self._held, self._stop_reason = self._held[:begins], self._held[begins:ends]
        return True
