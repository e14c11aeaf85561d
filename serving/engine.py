"""The engine: one thread that schedules requests and runs rounds.

A step: work asked for between rounds (a swap) → drop cancelled requests → admit and prefill, a
bounded chunk → one round over all running requests → free slots, record, tell listeners, hand out text.
"""

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from concurrent.futures import Future
from typing import TypeVar

from transformers import PreTrainedTokenizerBase

from pipeline.models import ModelError
from serving.decoder import Round, SpeculativeDecoder
from serving.events import EngineListener, RoundStats, SwapEvent
from serving.logits import SamplingBatch
from serving.recorder import Recorder
from serving.request import FinishReason, GenerationRequest, OutputDelta
from serving.sequence import Sequence

T = TypeVar("T")


class QueueFullError(RuntimeError):
    """More requests wait than `max_queue` allows; try again later."""


class Engine:
    """Decodes requests from any thread, with continuous batching."""

    def __init__(
        self,
        decoder: SpeculativeDecoder,
        tokenizer: PreTrainedTokenizerBase,
        *,
        k: int,
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
        self.k = k if decoder.draft is not None else 0
        self.num_slots = num_slots
        self.max_model_len = max_model_len
        self.draft_version = 0
        self.recorder = recorder
        self.listeners: list[EngineListener] = []
        self._max_queue = max_queue
        self._prefill_chunk = prefill_chunk
        self._eos_ids = eos_ids
        self._wake = threading.Condition()
        self._waiting: deque[Sequence] = deque()
        self._cancelled: set[str] = set()
        self._errands: deque[tuple[Callable[[], object], Future]] = deque()
        self._running: list[Sequence] = []
        """Request of each row in use, by row."""
        self._prefilling: Sequence | None = None
        """Its row is the one after the last running."""
        self._sampling: SamplingBatch | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def num_running(self) -> int:
        return len(self._running) + (self._prefilling is not None)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

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
        """Queue a request. `on_delta` is called in the engine's thread; the last call has a finish reason.

        Raises ValueError for a prompt that is empty, leaves no room for `max_tokens` or has a token the
        models do not know, and `QueueFullError` when too many requests wait.
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
        seed = request.params.seed
        sequence = Sequence(
            request,
            on_delta,
            seed=seed if seed is not None else random.getrandbits(62),
            tokenizer=self.tokenizer.backend_tokenizer,
            eos_ids=self._eos_ids,
        )
        with self._wake:
            if self._stopping:
                raise QueueFullError("the engine is stopping")
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
        """Stamp the next rounds with a new draft version; called by the errand that swapped."""
        self.draft_version = event.version
        for listener in self.listeners:
            listener.on_swap(event)

    def step(self) -> None:
        """One turn of the loop; `start` runs it in a thread until `stop`."""
        self._run_errands()
        self._drop_cancelled()
        self._prefill()
        if self._running:
            self._round()

    def _run(self) -> None:
        try:
            while True:
                with self._wake:
                    self._wake.wait_for(lambda: self._stopping or self._has_work())
                    if self._stopping:
                        return
                self.step()
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
        for sequence in left:
            self._finish(sequence, reason)

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

    def _drop_cancelled(self) -> None:
        with self._wake:
            cancelled, self._cancelled = self._cancelled, set()
            dropped = [s for s in self._waiting if s.request.request_id in cancelled]
            for sequence in dropped:
                self._waiting.remove(sequence)
        for row in reversed(range(len(self._running))):
            if self._running[row].request.request_id in cancelled:
                dropped.append(self._running[row])
                self._release(row)
        if self._prefilling and self._prefilling.request.request_id in cancelled:
            dropped.append(self._prefilling)
            self._prefilling = None
        for sequence in dropped:
            self._finish(sequence, "cancelled")

    def _prefill(self) -> None:
        """Admit the next request to the row after the running ones and process a chunk of its prompt."""
        budget = self._prefill_chunk
        while budget > 0:
            row = len(self._running)
            if self._prefilling is None:
                with self._wake:
                    if not self._waiting or row == self.num_slots:
                        return
                    self._prefilling = self._waiting.popleft()
                self._prefilling.admit()
                self.decoder.load(row, self._prefilling.request.prompt_ids)
            done = self.decoder.prefill(row, budget, with_draft=self.k > 0)
            budget -= min(budget, len(self._prefilling.request.prompt_ids))
            if done:
                self._running.append(self._prefilling)
                self._prefilling = self._sampling = None

    def _round(self) -> None:
        started = time.perf_counter()
        if self._sampling is None:
            params = [sequence.request.params for sequence in self._running]
            seeds = [sequence.seed for sequence in self._running]
            self._sampling = SamplingBatch.of(params, seeds, self.decoder.device)
        log = self.recorder is not None and any(s.request.record for s in self._running)
        outcome = self.decoder.round(len(self._running), self.k, self._sampling, log=log)
        running = list(self._running)
        before = sum(len(sequence.output_ids) for sequence in running)
        reasons = [sequence.commit(outcome, row, self.draft_version) for row, sequence in enumerate(running)]
        for row in reversed(range(len(running))):
            if reasons[row] is not None:
                self._release(row)
        self._tell_round(outcome, running, before, time.perf_counter() - started)
        for sequence, reason in zip(running, reasons, strict=True):
            if reason is None:
                sequence.send(None)
            else:
                self._finish(sequence, reason)

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

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """Record and count a request before its client hears the end, so that it finds what it looks for."""
        if reason in ("stop", "length") and self.recorder is not None:
            sample = sequence.sample()
            if sample is not None:
                self.recorder.record(sample)
        for listener in self.listeners:
            listener.on_finish(sequence.request, sequence.stats(), reason)
        sequence.send(reason)

    def _tell_round(self, outcome: Round, running: Items[Sequence], tokens_before: int, seconds: float) -> None:
        accepted = outcome.num_accepted.tolist()
        stats = RoundStats(
            k=self.k,
            requests=len(running),
            drafted_tokens=self.k * len(running),
            accepted_tokens=sum(accepted),
            accepted_per_position=tuple(sum(n > position for n in accepted) for position in range(self.k)),
            new_tokens=sum(len(sequence.output_ids) for sequence in running) - tokens_before,
            seconds=seconds,
            draft_version=self.draft_version,
        )
        for listener in self.listeners:
            listener.on_round(stats)
