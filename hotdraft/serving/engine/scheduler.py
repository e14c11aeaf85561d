"""Who waits, who runs in which row, and what of the prompts is read between rounds; it needs no thread.

The rows that run are in front, and the one whose prompt is being read comes after them.
"""

import threading
import time
from itertools import takewhile
from typing import NamedTuple

from hotdraft.serving.decoding.decoder import SpeculativeDecoder
from hotdraft.serving.decoding.learned_costs import RoundSetting
from hotdraft.serving.decoding.rounds import Round
from hotdraft.serving.engine.k_choice import KChoice
from hotdraft.serving.engine.sequence import Sequence
from hotdraft.serving.engine.waiting import Waiting
from hotdraft.serving.messages.request import FinishReason, GenerationRequest
from hotdraft.serving.models.track import MIN_SHARED
from hotdraft.serving.proposers.plan import ProposalPlan
from hotdraft.serving.proposers.suffixes import NOTHING, Guess
from hotdraft.serving.sampling.logits import SamplingBatch, Withheld


class RoundPlan(NamedTuple):
    """A round to be run."""

    running: list[Sequence]
    """Request of each row."""
    sampling: SamplingBatch
    setting: RoundSetting
    proposals: ProposalPlan
    log: bool
    """Whether the target's distributions are to be recorded."""
    guesses: list[Guess]
    """From text, proposed or not, of each row."""


class Scheduler:
    """Any thread may `add` and count; one does the rest."""

    def __init__(
        self, decoder: SpeculativeDecoder, k_choice: KChoice, *, max_queue: int, prefill_chunk: int
    ) -> None:
        self.running: list[Sequence] = []
        """Request of each row in use, by row."""
        self.prefilling: Sequence | None = None
        """Its row is the one after the last running."""
        self._together: list[Sequence] = []
        """Whose prompts are read in one forward, in the rows before that; none but while they are."""
        self._decoder = decoder
        self._k_choice = k_choice
        self._prefill_chunk = prefill_chunk
        self._waiting = Waiting(max_queue)
        self._lock = threading.Lock()
        self._sampling: SamplingBatch | None = None
        self._withheld: list[Withheld | None] = []
        """What that was made with."""

    @property
    def num_running(self) -> int:
        return len(self.running) + len(self._together) + (self.prefilling is not None)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether no request waits or runs."""
        with self._lock:
            return not self._waiting and not self.num_running

    def add(self, sequence: Sequence) -> None:
        """Raises `QueueFullError` when too many requests wait."""
        with self._lock:
            self._waiting.check_room(sequence.request.client)
            self._waiting.add(sequence)

    def check_room(self, client: str, count: int) -> None:
        """Raises `QueueFullError` where `add` would before `count` more of the client's wait."""
        with self._lock:
            self._waiting.check_room(client, count)

    def drop(self, cancelled: set[str]) -> list[Sequence]:
        """Free the rows of requests that were cancelled, by id, or told by the output thread that they ended."""
        with self._lock:
            dropped = self._waiting.drop(cancelled)
        for row in reversed(range(len(self.running))):
            sequence = self.running[row]
            if sequence.request.request_id in cancelled or sequence.output.finish_reason is not None:
                dropped.append(sequence)
                if sequence.output.finish_reason is not None:
                    self._keep_states(row)
                self._release(row)
        if self.prefilling and self.prefilling.request.request_id in cancelled:
            dropped.append(self.drop_prefilling())  # no round has shown that what was read is sound
        return dropped

    def read_prompts(self) -> None:
        """Admit the next request and read a chunk of its prompt, of which only what was not read before counts.

        With others that fit whole into what the chunk leaves: a few tokens of a prompt cost as much as many. Where
        there are graphs, several in one forward: on a GPU short prompts take as long as their launches.
        """
        budget = self._prefill_chunk
        while budget > 0 and (self.prefilling is not None or self._admit()):
            assert self.prefilling is not None
            row, prompt_log = len(self.running), self.prefilling.output.prompt_log
            with_proposer = self._with_proposer(self.prefilling)
            unread = self._decoder.unread(row, with_proposer=with_proposer)
            if budget < min(self._prefill_chunk, unread):
                return
            if unread <= budget and self._decoder.graphed and (width := self._gather(unread, budget)):
                rows = slice(row, row + len(self._together))
                self._decoder.prefill_together(rows, with_proposer=with_proposer)
                budget -= width * len(self._together)
                self.running += self._together
                self._together, self._sampling = [], None
                continue
            before = self._decoder.proposer_seconds
            self._decoder.prefill(row, budget, with_proposer=with_proposer, prompt_log=prompt_log)
            self.prefilling.reading += self._decoder.proposer_seconds - before
            budget -= unread
            if budget >= 0:
                self.running.append(self.prefilling)
                self.prefilling = self._sampling = None

    def separate(self) -> None:
        """Read the prompts alone that could not be read together."""
        for row, sequence in enumerate(self._together, len(self.running)):
            self._decoder.discard(row)
            sequence.is_read_alone = True
        with self._lock:
            for sequence in reversed(self._together):
                self._waiting.put_back(sequence)
        self._together = []

    def plan(self) -> RoundPlan:
        """The next round, of all that run."""
        running = list(self.running)
        withheld = [sequence.withheld for sequence in running]
        if self._sampling is None or withheld != self._withheld:
            params, seeds = [one.request.params for one in running], [one.seed for one in running]
            self._sampling = SamplingBatch.of(params, seeds, self._decoder.device, withheld)
            self._withheld = withheld
        context = max(self._decoder.slots.lengths[: len(running)])
        setting = RoundSetting(len(running), context, self._sampling.kind)
        k = self._k_choice.k
        if k == "auto":
            guesses = [self._guess(row, sequence) for row, sequence in enumerate(running)]
            outlooks = [one.outlook(guess) for one, guess in zip(running, guesses, strict=True)]
            proposals = self._k_choice.choose(outlooks, [one.token_ids for one in guesses], setting)
        else:
            guesses = [NOTHING] * len(running)
            proposals = self._k_choice.caught_up(ProposalPlan.uniform(len(running), k))
        log = any(sequence.output.is_recorded for sequence in running)
        return RoundPlan(running, self._sampling, setting, proposals, log, guesses)

    def learn(self, plan: RoundPlan, outcome: Round) -> None:
        """What a round took, and what became of its proposals."""
        self._k_choice.observe(plan.setting, outcome, [sequence.is_drafted for sequence in plan.running])
        for row, is_sound in enumerate(outcome.target_is_sound.tolist()):
            if is_sound:
                plan.running[row].learn(outcome, row, plan.guesses[row])

    def advance(self, plan: RoundPlan, outcome: Round) -> list[tuple[int, FinishReason | None]]:
        """Free the rows of those that a round ends: what `Sequence.advance` says of each row."""
        if plan.proposals.saved is not None:
            for sequence, saved in zip(plan.running, plan.proposals.saved, strict=True):
                sequence.saved += saved
        advances = [sequence.advance(outcome, row) for row, sequence in enumerate(plan.running)]
        for row in reversed(range(len(plan.running))):
            if advances[row][1] is not None:
                self._keep_states(row)
                self._release(row)
        return advances

    def plain_seconds(self, plan: RoundPlan, tokens: int) -> float | None:
        """What rounds without a draft over the same rows would take to give `tokens`; None if that is unknown."""
        a_round = self._k_choice.plain_round_seconds(plan.setting)
        return None if a_round is None else a_round * tokens / len(plan.running)

    def drop_prefilling(self) -> Sequence:
        """Whatever was read of its prompt is forgotten."""
        sequence, self.prefilling = self.prefilling, None
        assert sequence is not None, "a prompt is being read"
        self._decoder.discard(len(self.running) + len(self._together))
        return sequence

    def drop_running(self) -> None:
        """Forget all that run; the one whose prompt is being read goes on, in the first row."""
        rows, self.running, self._sampling = len(self.running), [], None
        for row in range(rows):
            self._decoder.discard(row)
        if self.prefilling is not None and rows:
            self._decoder.move(rows, 0)

    def clear(self) -> list[Sequence]:
        """All that run or wait; the decoder is left as it is."""
        with self._lock:
            left = [*self.running, *self._together, *([self.prefilling] if self.prefilling else [])]
            self.running, self._together, self.prefilling = [], [], None
            left += [self._waiting.take() for _ in range(len(self._waiting))]
        return left

    def _guess(self, row: int, sequence: Sequence) -> Guess:
        guessing = self._k_choice.guessing
        if guessing is None:
            return NOTHING
        of_guesses = sequence.estimates.guessed
        assert of_guesses is not None, "the engine that guesses has estimates of guesses"
        context, rates = self._decoder.slots.held(row), of_guesses.rates()
        return guessing.guess(sequence.request.scope, context, sequence.left - 1, rates)

    def _gather(self, unread: int, budget: int) -> int:
        """Admit those whose prompts are read with the one under way, of which all that is `unread` fits.

        The longest of what they have not read; 0 if there are none.
        """
        first = self.prefilling
        assert first is not None
        if not first.may_be_read_together:
            return 0
        self._together, self.prefilling, width = [first], None, unread
        while self._admit():
            assert self.prefilling is not None
            row, joins = len(self.running) + len(self._together), self._with_proposer(self.prefilling)
            unread = self._decoder.unread(row, with_proposer=joins)
            if (
                not self.prefilling.may_be_read_together
                or joins != self._with_proposer(first)
                or max(width, unread) * (len(self._together) + 1) > budget
                or self._would_share(self.prefilling.request, unread)
            ):
                with self._lock:
                    self._waiting.put_back(self.prefilling)
                self.prefilling = None
                break
            width = max(width, unread)
            self._together.append(self.prefilling)
            self.prefilling = None
        if len(self._together) > 1:
            return width
        self._together, self.prefilling = [], first
        return 0

    def _would_share(self, request: GenerationRequest, unread: int) -> bool:
        """Whether it can copy more, of those that are being read, than it has to read now."""
        needed = len(request.prompt_ids) - 1 - unread + MIN_SHARED
        beside = (other.request for other in self._together)
        return any(
            other.scope == request.scope and _shared(request.prompt_ids, other.prompt_ids) >= needed
            for other in beside
        )

    def _with_proposer(self, sequence: Sequence) -> bool:
        """Whether the draft reads its prompt as well."""
        return sequence.is_drafted and self._k_choice.k != 0

    def _admit(self) -> bool:
        """Give the next request the row after those in use; whether there was one, and a row."""
        row = len(self.running) + len(self._together)
        with self._lock:
            if not self._waiting or row == self._decoder.slots.num_slots:
                return False
            self.prefilling = self._waiting.take()
        output = self.prefilling.output
        if output.admitted is None:  # else it was put back: to ask again would use up what is tried now and then
            self.prefilling.is_drafted_alone = self._k_choice.is_drafted_alone(recorded=output.is_recorded)
            self.prefilling.is_drafted = self.prefilling.is_drafted_alone or self._k_choice.is_drafted(row + 1)
            output.admitted = time.perf_counter()
        request, read_whole = output.request, output.prompt_log is not None
        self._decoder.load(row, request.prompt_ids, scope=request.scope, read_whole=read_whole)
        return True

    def _keep_states(self, row: int) -> None:
        output = self.running[row].output
        if output.keeps_states:
            output.states = self._decoder.states_of(row)

    def _release(self, row: int) -> None:
        """Free a row and close the gap, so that running rows stay in front, the prefilling one after them."""
        self._remember(row)
        if self.running[row].is_drafted and not self.running[row].is_drafted_alone:
            self._k_choice.ended(self.running[row].saved, self.running[row].reading, len(self.running))
        last = len(self.running) - 1
        if row != last:
            self._decoder.move(last, row)
            self.running[row] = self.running[last]
        self.running.pop()
        self._sampling = None
        if self.prefilling is not None:
            self._decoder.move(last + 1, last)

    def _remember(self, row: int) -> None:
        sequence, guessing = self.running[row], self._k_choice.guessing
        request = sequence.request
        if guessing is not None and request.record:
            answered = request.params.max_tokens - sequence.left  # what a round committed beyond is no answer
            held = self._decoder.slots.held(row)[len(request.prompt_ids) :]
            guessing.remember(request.scope, held[:answered])


def _shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Tokens that both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
