"""What the engine's thread does over and over, and what it makes of failures.

A step: drop requests that were cancelled or met a stop string → admit and prefill, a bounded chunk → one round
over all running requests → free the slots of those that ended. Text, records and listeners are the output
thread's, while the next round runs.

What a step raises ends the requests it was about, and no others. After a few failures in a row a request of
its own is tried, and only what that raises is raised.
"""

import time
from collections.abc import Callable
from functools import partial

from hotdraft.serving.decoding.decoder import SpeculativeDecoder
from hotdraft.serving.decoding.rounds import Round
from hotdraft.serving.engine.failures import Failures
from hotdraft.serving.engine.output import Output
from hotdraft.serving.engine.output_thread import OutputThread
from hotdraft.serving.engine.scheduler import RoundPlan, Scheduler
from hotdraft.serving.engine.sequence import Sequence
from hotdraft.serving.messages.events import RoundStats
from hotdraft.serving.messages.request import FinishReason
from hotdraft.serving.sampling.soundness import UnsoundLogitsError

MAX_FAILED_STEPS = 3
"""In a row, after which it is asked whether the decoder works at all."""


class Steps:
    """Runs what the scheduler plans."""

    def __init__(
        self, decoder: SpeculativeDecoder, scheduler: Scheduler, outputs: OutputThread, failures: Failures
    ) -> None:
        self.draft_version = 0
        self._decoder = decoder
        self._scheduler = scheduler
        self._outputs = outputs
        self._failures = failures
        self._ended: list[Output] = []
        """Whose last tokens may not have been told yet."""
        self._computes_aside = decoder.device.type != "cpu"
        self._untold: Callable[[], None] | None = None
        """Of the last round, what nobody has heard or learnt yet: a GPU is to compute the next one meanwhile."""
        self._failed = 0
        """Steps since the last round that brought something."""

    def step(self, cancelled: set[str]) -> None:
        """One step, without the requests that were cancelled, by id."""
        if dropped := self._scheduler.drop(cancelled):
            self.tell()
        for sequence in dropped:
            self._outputs.finish(sequence.output, "cancelled")
        try:
            self._scheduler.read_prompts()
        except Exception as error:  # noqa: BLE001 -- whatever it is, it is one request's
            self._end_prefilling(error)
        running = list(self._scheduler.running)
        if not running:
            return
        try:
            self._round()
        except Exception as error:  # noqa: BLE001 -- whatever it is, requests that wait have no part in it
            self._end_round(running, error)

    def abandon(self, reason: FinishReason) -> None:
        """End all requests; the output thread has stopped."""
        self.tell()
        for output in [*self._ended, *(sequence.output for sequence in self._scheduler.clear())]:
            self._outputs.finish(output, reason)

    def tell(self) -> None:
        """What the last round brought, to whom it concerns, if they have not heard."""
        if self._untold is not None:
            untold, self._untold = self._untold, None
            untold()

    def _round(self) -> None:
        plan = self._scheduler.plan()
        outcome = self._decoder.round(plan.proposals, plan.sampling, log=plan.log, meanwhile=self.tell)
        self.tell()
        now = time.perf_counter()
        inter_token = tuple(now - s.last_round for s in plan.running if s.last_round is not None)
        for sequence in plan.running:
            sequence.last_round = now
        advances = self._scheduler.advance(plan, outcome)
        rows = zip(plan.running, advances, strict=True)
        ended = [sequence.output for sequence, (_, reason) in rows if reason is not None]
        self._ended = [output for output in self._ended if output.finish_reason is None] + ended
        self._untold = partial(self._tell_round, plan, outcome, advances, self.draft_version, inter_token)
        if not (self._computes_aside and self._scheduler.running):
            self.tell()
        self._note_soundness(outcome)

    def _tell_round(
        self,
        plan: RoundPlan,
        outcome: Round,
        advances: list[tuple[int, FinishReason | None]],
        draft_version: int,
        inter_token: tuple[float, ...],
    ) -> None:
        self._scheduler.learn(plan, outcome)
        new_tokens = sum(count for count, _ in advances)
        columns = outcome.num_proposed, outcome.num_accepted, outcome.num_guessed
        proposed, accepted, guessed = (column.tolist() for column in columns)  # of which sums are sooner made
        stats = RoundStats(
            k=(most := max(proposed)),
            drafts=sum(count > 0 for count in proposed),
            proposed_tokens=sum(proposed),
            accepted_tokens=sum(accepted),
            accepted_per_position=tuple(sum(count > position for count in accepted) for position in range(most)),
            guessed_tokens=sum(guessed),
            accepted_guesses=sum(map(min, accepted, guessed)),
            new_tokens=new_tokens,
            seconds=outcome.seconds.total,
            draft_version=draft_version,
            alternatives=sum(outcome.num_alternatives.tolist()),
            accepted_alternatives=sum(index >= 0 for index in outcome.came.tolist()),
            plain_seconds=self._scheduler.plain_seconds(plan, new_tokens),
            inter_token_seconds=inter_token,
        )
        self._outputs.round(stats, outcome, [sequence.output for sequence in plan.running], advances)

    def _end_prefilling(self, error: Exception) -> None:
        reading = self._scheduler.prefilling
        self._failures.add("prefill", error, "its request ends" if reading else "its prompts are read one by one")
        if reading is not None:
            self._outputs.finish(reading.output, "error")
            self._scheduler.drop_prefilling()
        self._scheduler.separate()
        self._count_failed()

    def _end_round(self, running: list[Sequence], error: Exception) -> None:
        self.tell()
        self._failures.add("round", error, f"its {len(running)} requests end")
        # those of the round before as well: it may be what could not be told
        for output in [*self._ended, *(sequence.output for sequence in running)]:
            self._outputs.finish(output, "error")
        self._scheduler.drop_running()
        self._count_failed()

    def _note_soundness(self, outcome: Round) -> None:
        unsound = UnsoundLogitsError("logits that are no numbers")
        for _ in range(int((~outcome.target_is_sound).sum())):
            self._failures.add("target", unsound, "its request ends")
        for _ in range(int((~outcome.draft_is_sound).sum())):
            self._failures.add("draft", unsound, "its request goes on with a draft that guesses")
        if outcome.target_is_sound.any():
            self._failed = 0
        else:
            self._count_failed()

    def _count_failed(self) -> None:
        """Raises what is wrong with the decoder if it fails on and on."""
        self._failed += 1
        if self._failed >= MAX_FAILED_STEPS and not self._scheduler.num_running:
            self._decoder.check()
            self._failed = 0
