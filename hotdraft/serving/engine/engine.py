"""The engine: one thread that schedules requests and runs rounds.

A step: work asked for between rounds (a swap) → drop requests that were cancelled or met a stop string
→ admit and prefill, a bounded chunk → one round over all running requests → free the slots of those
that ended. Text, records and listeners are the output thread's, while the next round runs.

What a step raises ends the requests it was about, and no others. After a few failures in a row the
engine tries a request of its own, and ends only if that fails too.
"""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Literal, TypeVar

from transformers import PreTrainedTokenizerBase

from hotdraft.pipeline.models.loading import ModelError
from hotdraft.serving.decoding.adaptive_k import AcceptanceEstimate, AdaptiveK
from hotdraft.serving.decoding.costs import RoundCosts, profile_costs, rows_to_measure
from hotdraft.serving.decoding.decoder import SpeculativeDecoder
from hotdraft.serving.decoding.learned_costs import Setting
from hotdraft.serving.decoding.rounds import Round
from hotdraft.serving.engine.failures import Failures, brief
from hotdraft.serving.engine.output import Output
from hotdraft.serving.engine.output_thread import OutputThread
from hotdraft.serving.engine.recorder import Recorder
from hotdraft.serving.engine.sequence import Sequence
from hotdraft.serving.messages.events import RoundStats, SwapEvent
from hotdraft.serving.messages.request import MAX_LOGPROBS, FinishReason, GenerationRequest, OutputDelta
from hotdraft.serving.sampling.logits import SamplingBatch
from hotdraft.serving.sampling.soundness import UnsoundLogitsError

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_FAILED_STEPS = 3
"""In a row, after which the engine asks whether it works at all."""


class QueueFullError(RuntimeError):
    """More requests wait than `max_queue` allows; try again later."""


class ShuttingDownError(RuntimeError):
    """No request is taken any more; ask another server."""


class Engine:
    """Decodes requests from any thread, with continuous batching."""

    def __init__(
        self,
        decoder: SpeculativeDecoder,
        tokenizer: PreTrainedTokenizerBase,
        *,
        k: int | Literal["auto"],
        num_slots: int,
        max_model_len: int,
        max_queue: int = 1024,
        prefill_chunk: int = 256,
        eos_ids: frozenset[int] = frozenset(),
        recorder: Recorder | None = None,
    ) -> None:
        if not tokenizer.is_fast:
            raise ModelError(f"{type(tokenizer).__name__} has no fast version, which streaming text needs")
        self.decoder = decoder
        self.tokenizer = tokenizer
        self._k = k if decoder.proposer is not None else 0
        self.adaptive_k: AdaptiveK | None = None
        self._acceptance = AcceptanceEstimate(decoder.max_k)
        self.eos_ids = eos_ids
        self.num_slots = num_slots
        self.max_model_len = max_model_len
        self.max_logprobs = min(MAX_LOGPROBS, decoder.log_top_k)
        """Likeliest tokens that a request may ask for at a position."""
        self.draft_version = 0
        self.recorder = recorder
        self._max_queue = max_queue
        self._prefill_chunk = prefill_chunk
        self._wake = threading.Condition()
        self._waiting: deque[Sequence] = deque()
        self._cancelled: set[str] = set()
        self._errands: deque[tuple[Callable[[], object], Future]] = deque()
        self._running: list[Sequence] = []
        """Request of each row in use, by row."""
        self._prefilling: Sequence | None = None
        """Its row is the one after the last running."""
        self._ended: list[Output] = []
        """Whose last tokens may not have been told yet."""
        self._sampling: SamplingBatch | None = None
        self._failed_steps = 0
        """Since the last round that brought something."""
        self._due_k = 0
        """What auto has chosen, while the draft has yet to read what it missed."""
        self._failures = Failures()
        self.fatal_error: str | None = None
        """What ended the engine, if it did not end as asked."""
        self._outputs = OutputThread(recorder, self._failures)
        self.listeners = self._outputs.listeners
        """Who hears of rounds, finished requests and swaps, in the output thread."""
        self._draining = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def k(self) -> int | Literal["auto"]:
        """Drafted tokens a round; may be set at any time and holds from the next round on."""
        return self._k

    @k.setter
    def k(self, k: int | Literal["auto"]) -> None:
        if k == "auto" and self.adaptive_k is None:
            raise ValueError("k can be 'auto' only once the costs of rounds were measured, see `measure_costs`")
        if k != "auto" and not 0 <= k <= self.decoder.max_k:
            raise ValueError(f"k must be 'auto' or between 0 and {self.decoder.max_k}, not {k}")
        self._k = k

    @property
    def num_running(self) -> int:
        return len(self._running) + (self._prefilling is not None)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether no request waits or runs."""
        with self._wake:
            return not self._waiting and not self.num_running

    @property
    def is_draining(self) -> bool:
        """Whether no more requests are taken."""
        return self._draining or self._stopping

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def failures(self) -> Mapping[str, int]:
        """What failed since the start and was survived, by place."""
        return self._failures.counts

    def measure_costs(self) -> RoundCosts:
        """Learn what rounds cost on this machine, by rows and k; only while no request runs. Takes seconds."""
        costs = profile_costs(self.decoder, rows_to_measure(self.num_slots), self.decoder.max_k)
        self.adaptive_k = AdaptiveK(costs)
        return costs

    def start(self) -> None:
        """Begin to serve. With k "auto" the costs of rounds are measured first."""
        unknown = self.k == "auto" and self.adaptive_k is None
        measured = self.between_rounds(self.measure_costs) if unknown else None
        self._outputs.start()
        self._thread.start()
        if measured is not None:
            measured.result()

    def stop_accepting(self) -> None:
        """Take no more requests; those that wait or run go on."""
        self._draining = True

    def stop(self) -> None:
        """End after the current round; unfinished requests are told `cancelled`."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.ident is None:
            self._abandon("cancelled")
        else:
            self._thread.join()

    def submit(self, request: GenerationRequest, on_delta: Callable[[OutputDelta], None]) -> None:
        """Queue a request. `on_delta` is called in the output thread; the last call has a finish reason.

        Raises ValueError for a prompt that is empty, leaves no room for `max_tokens` or has a token the
        models do not know and for more log-probs than `max_logprobs`, `QueueFullError` when too many
        requests wait, and `ShuttingDownError` once the engine takes no more.
        """
        prompt, wanted = len(request.prompt_ids), request.params.max_tokens
        if prompt == 0:
            raise ValueError("the prompt is empty: at least one token is needed")
        if prompt + wanted > self.max_model_len:
            raise ValueError(
                f"this model's maximum context length is {self.max_model_len} tokens, and the request has "
                f"{prompt} in the prompt and up to {wanted} to generate"
            )
        if not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < self.decoder.vocab_size:
            raise ValueError(f"the prompt has token ids outside 0..{self.decoder.vocab_size - 1}")
        for field in ("logprobs", "prompt_logprobs"):
            number = getattr(request.params, field)
            if number is not None and number > self.max_logprobs:
                raise ValueError(f"{field} must be at most {self.max_logprobs} on this server, not {number}")
        seed = request.params.seed
        sequence = Sequence(
            Output(request, on_delta, self.tokenizer.backend_tokenizer, record=self.recorder is not None),
            seed=seed if seed is not None else random.getrandbits(62),
            eos_ids=self.eos_ids,
            acceptance=AcceptanceEstimate(self.decoder.max_k, prior=self._acceptance),
        )
        with self._wake:
            if self.is_draining:
                raise ShuttingDownError(
                    "the server is shutting down" if self._draining else "the engine has stopped"
                )
            if len(self._waiting) >= self._max_queue:
                raise QueueFullError(f"{self._max_queue} requests are waiting already")
            self._waiting.append(sequence)
            self._wake.notify()

    def cancel(self, request_id: str) -> None:
        """Free a request's slot at the end of the round; nothing happens if it is gone already."""
        with self._wake:
            self._cancelled.add(request_id)
            self._wake.notify()

    def between_rounds(self, errand: Callable[[], T]) -> "Future[T]":
        """Run `errand` in the engine's thread while no round is under way."""
        future: Future[T] = Future()
        with self._wake:
            if self._stopping:
                future.cancel()
            else:
                self._errands.append((errand, future))
                self._wake.notify()
        return future

    def announce_swap(self, event: SwapEvent) -> None:
        """Stamp the next rounds with a new version; called by the errand that swapped."""
        self.draft_version = event.version
        self._outputs.swap(event)

    def step(self) -> None:
        """One turn of the loop; `start` runs it in a thread until `stop`."""
        self._run_errands()
        self._drop_finished()
        try:
            self._prefill()
        except Exception as error:  # noqa: BLE001 -- whatever it is, it is one request's
            self._end_prefilling(error)
        running = list(self._running)
        if not running:
            return
        try:
            self._round(running)
        except Exception as error:  # noqa: BLE001 -- whatever it is, requests that wait have no part in it
            self._end_round(running, error)

    def _run(self) -> None:
        try:
            while True:
                with self._wake:
                    self._wake.wait_for(lambda: self._stopping or self._has_work())
                    if self._stopping:
                        return
                self.step()
        except Exception as error:
            self.fatal_error = brief(error)
            logger.exception("the engine ends")
        finally:
            self._abandon("cancelled" if self._stopping else "error")

    def _has_work(self) -> bool:
        return bool(self._waiting or self._running or self._prefilling or self._errands or self._cancelled)

    def _abandon(self, reason: FinishReason) -> None:
        with self._wake:
            self._stopping = True
            left = [*self._running, *self._waiting] + ([self._prefilling] if self._prefilling else [])
            self._running, self._prefilling = [], None
            self._waiting.clear()
            while self._errands:
                self._errands.popleft()[1].cancel()
        self._outputs.stop()
        for output in [*self._ended, *(sequence.output for sequence in left)]:
            self._outputs.finish(output, reason)

    def _end_prefilling(self, error: Exception) -> None:
        sequence, self._prefilling = self._prefilling, None
        assert sequence is not None, "only reading a prompt can fail"
        self._failures.add("prefill", error, "its request ends")
        self._outputs.finish(sequence.output, "error")
        self.decoder.discard(len(self._running))
        self._count_failed_step()

    def _end_round(self, running: list[Sequence], error: Exception) -> None:
        """End the requests of a round; the one whose prompt is being read goes on, in the first row."""
        self._failures.add("round", error, f"its {len(running)} requests end")
        for sequence in running:
            self._outputs.finish(sequence.output, "error")
        rows, self._running, self._sampling = len(self._running), [], None
        for row in range(rows):
            self.decoder.discard(row)
        if self._prefilling is not None and rows:
            self.decoder.move(rows, 0)
        self._count_failed_step()

    def _count_failed_step(self) -> None:
        """Raises what is wrong with the decoder if it fails on and on."""
        self._failed_steps += 1
        if self._failed_steps >= MAX_FAILED_STEPS and not self.num_running:
            self.decoder.check()
            self._failed_steps = 0

    def _run_errands(self) -> None:
        while self._errands:
            errand, future = self._errands.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = errand()
            except Exception as error:  # noqa: BLE001 -- whatever it is, its caller waits for it
                future.set_exception(error)
            else:
                future.set_result(result)

    def _drop_finished(self) -> None:
        """Free the slots of requests that were cancelled, or told by the output thread that they ended."""
        with self._wake:
            cancelled, self._cancelled = self._cancelled, set()
            dropped = [s for s in self._waiting if s.request.request_id in cancelled]
            for sequence in dropped:
                self._waiting.remove(sequence)
        for row in reversed(range(len(self._running))):
            sequence = self._running[row]
            if sequence.request.request_id in cancelled or sequence.output.finish_reason is not None:
                dropped.append(sequence)
                self._release(row)
        if self._prefilling and self._prefilling.request.request_id in cancelled:
            dropped.append(self._prefilling)
            self._prefilling = None
            self.decoder.discard(len(self._running))  # no round has shown that what was read is sound
        for sequence in dropped:
            self._outputs.finish(sequence.output, "cancelled")

    def _prefill(self) -> None:
        """Admit the next request and read a chunk of its prompt, of which only what was not read before counts.

        With others that fit whole into what the chunk leaves: a few tokens of a prompt cost as much as many.
        """
        budget, with_proposer = self._prefill_chunk, self.k != 0
        while budget > 0 and (self._prefilling is not None or self._admit()):
            assert self._prefilling is not None
            row, prompt_log = len(self._running), self._prefilling.output.prompt_log
            unread = self.decoder.unread(row, with_proposer=with_proposer)
            if budget < min(self._prefill_chunk, unread):
                return
            self.decoder.prefill(row, budget, with_proposer=with_proposer, prompt_log=prompt_log)
            budget -= unread
            if budget >= 0:
                self._running.append(self._prefilling)
                self._prefilling = self._sampling = None

    def _admit(self) -> bool:
        """Give the next request the row after the running ones; whether there was one, and a row."""
        row = len(self._running)
        with self._wake:
            if not self._waiting or row == self.num_slots:
                return False
            self._prefilling = self._waiting.popleft()
        output = self._prefilling.output
        output.admitted = time.perf_counter()
        self.decoder.load(row, output.request.prompt_ids, read_whole=output.prompt_log is not None)
        return True

    def _round(self, running: list[Sequence]) -> None:
        started = time.perf_counter()
        if self._sampling is None:
            params = [sequence.request.params for sequence in running]
            self._sampling = SamplingBatch.of(params, [s.seed for s in running], self.decoder.device)
        setting = Setting(len(running), max(self.decoder.slots.lengths[: len(running)]), self._sampling.kind)
        k = self._choose_k(running, setting)
        log = any(sequence.output.is_recorded for sequence in running)
        decoding = time.perf_counter()
        outcome = self.decoder.round(len(running), k, self._sampling, log=log)
        if self.adaptive_k is not None:
            self.adaptive_k.observe(setting, k, time.perf_counter() - decoding)
        accepted = outcome.num_accepted.tolist()
        drafted = outcome.num_drafted.tolist()
        for sequence, count, of, sound in zip(running, accepted, drafted, outcome.target_is_sound, strict=True):
            if sound:
                sequence.acceptance.observe(count, of)
        now = time.perf_counter()
        inter_token = tuple(now - s.last_round for s in running if s.last_round is not None)
        for sequence in running:
            sequence.last_round = now
        advances = [sequence.advance(outcome, row) for row, sequence in enumerate(running)]
        self._ended = [output for output in self._ended if output.finish_reason is None]
        for row in reversed(range(len(running))):
            if advances[row][1] is not None:
                self._ended.append(running[row].output)
                self._release(row)
        stats = RoundStats(
            k=k,
            requests=len(running),
            drafted_tokens=sum(drafted),
            accepted_tokens=sum(accepted),
            accepted_per_position=tuple(sum(n > position for n in accepted) for position in range(k)),
            new_tokens=sum(count for count, _ in advances),
            seconds=time.perf_counter() - started,
            draft_version=self.draft_version,
            inter_token_seconds=inter_token,
        )
        self._outputs.round(stats, outcome, [s.output for s in running], advances)
        self._note_soundness(outcome)

    def _choose_k(self, running: list[Sequence], setting: Setting) -> int:
        """Of the next round: 0 as long as the draft is far behind; it reads a chunk of each request a round."""
        k = self.k
        if k == "auto":
            assert self.adaptive_k is not None
            longest = max(sequence.left for sequence in running)
            k = self._due_k or self.adaptive_k.choose([s.acceptance for s in running], longest, setting)
        if k == 0 or self.decoder.catch_up(len(running), self._prefill_chunk):
            self._due_k = 0
            return k
        self._due_k = k
        return 0

    def _note_soundness(self, outcome: Round) -> None:
        unsound = UnsoundLogitsError("logits that are no numbers")
        for _ in range(int((~outcome.target_is_sound).sum())):
            self._failures.add("target", unsound, "its request ends")
        for _ in range(int((~outcome.draft_is_sound).sum())):
            self._failures.add("draft", unsound, "its request goes on with a draft that guesses")
        if outcome.target_is_sound.any():
            self._failed_steps = 0
        else:
            self._count_failed_step()

    def _release(self, row: int) -> None:
        """Free a row and close the gap, so that running rows stay in front, the prefilling one after them."""
        last = len(self._running) - 1
        if row != last:
            self.decoder.move(last, row)
            self._running[row] = self._running[last]
        self._running.pop()
        self._sampling = None
        if self._prefilling is not None:
            self.decoder.move(last + 1, last)
