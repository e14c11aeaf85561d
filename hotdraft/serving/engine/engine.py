"""The engine: requests from any thread, decoded by one of its own.

That thread does the work asked for between rounds (a swap), then a step, over and over. It ends as asked, or by
what a step raises.
"""

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from types import MappingProxyType
from typing import Literal, TypeVar

import torch
from transformers import PreTrainedTokenizerBase

from hotdraft.pipeline.models.names import ModelError
from hotdraft.serving.decoding.decoder import SpeculativeDecoder
from hotdraft.serving.decoding.guessing import Guessing
from hotdraft.serving.engine.detokenizer import Detokenizer, special_ids
from hotdraft.serving.engine.failures import Failures, brief
from hotdraft.serving.engine.k_choice import KChoice
from hotdraft.serving.engine.output import Output
from hotdraft.serving.engine.output_thread import OutputThread
from hotdraft.serving.engine.recorder import Recorder
from hotdraft.serving.engine.scheduler import Scheduler
from hotdraft.serving.engine.sequence import Sequence
from hotdraft.serving.engine.steps import Steps
from hotdraft.serving.graphs.recurring import GraphCounts
from hotdraft.serving.messages.events import SwapEvent
from hotdraft.serving.messages.limits import Limits
from hotdraft.serving.messages.request import MAX_LOGPROBS, FinishReason, GenerationRequest, OutputDelta
from hotdraft.serving.models.runner import Computation, Runner
from hotdraft.serving.proposers.draft_model import DraftModel

logger = logging.getLogger(__name__)

T = TypeVar("T")


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
        max_queue: int = 1024,
        prefill_chunk: int = 256,
        guessing: Guessing | None = None,
        eos_ids: frozenset[int] = frozenset(),
        sampling_defaults: Mapping[str, float] = MappingProxyType({}),
        recorder: Recorder | None = None,
    ) -> None:
        """`sampling_defaults` are what the target's authors would sample with, by fields of `SamplingParams`."""
        if not tokenizer.is_fast:
            raise ModelError(f"{type(tokenizer).__name__} has no fast version, which streaming text needs")
        self.decoder = decoder
        self.tokenizer = tokenizer
        self.eos_ids = eos_ids
        self.special_ids = special_ids(tokenizer.backend_tokenizer)
        """Tokens that are no text."""
        self.sampling_defaults = sampling_defaults
        self.num_slots = decoder.slots.num_slots
        self.max_model_len = decoder.max_model_len
        self.max_logprobs = min(MAX_LOGPROBS, decoder.log_top_k)
        self._limits = Limits(self.max_model_len, decoder.vocab_size, self.max_logprobs)
        self.k_choice = KChoice(decoder, k, prefill_chunk, guessing)
        self.scheduler = Scheduler(decoder, self.k_choice, max_queue=max_queue, prefill_chunk=prefill_chunk)
        self._failures = Failures()
        self._outputs = OutputThread(recorder, self._failures)
        self._steps = Steps(decoder, self.scheduler, self._outputs, self._failures)
        self.listeners = self._outputs.listeners
        """Who hears of rounds, finished requests and swaps, in the output thread."""
        self.fatal_error: str | None = None
        """What ended the engine, if it did not end as asked."""
        self._wake = threading.Condition()
        self._cancelled: set[str] = set()
        self._errands: deque[tuple[Callable[[], object], Future]] = deque()
        self._draining = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def k(self) -> int | Literal["auto"]:
        """Drafted tokens a round; may be set at any time and holds from the next round on."""
        return self.k_choice.k

    @k.setter
    def k(self, k: int | Literal["auto"]) -> None:
        self.k_choice.k = k

    @property
    def draft_version(self) -> int:
        return self._steps.draft_version

    @property
    def recorder(self) -> Recorder | None:
        """Who is handed finished requests."""
        return self._outputs.recorder

    def record_with(self, recorder: Recorder | None) -> Recorder | None:
        """Hand requests that end from now on to `recorder`; gives the one before, which hears no more."""
        return self._outputs.record_with(recorder).result()

    @property
    def computations(self) -> dict[str, Computation]:
        """By what target and draft are computed."""
        return {model: runner.computation for model, runner in self._runners.items()}

    @property
    def graphs(self) -> GraphCounts:
        """Of all that has any."""
        parts = [part.counts for part in self.decoder.graphed.values()]
        return GraphCounts(*(sum(column) for column in zip(*parts, strict=True)))

    @property
    def stalls(self) -> int:
        """Waits of a forward for one of its threads that was kept from its core."""
        return self._runners["target"].stalls

    @property
    def num_running(self) -> int:
        return self.scheduler.num_running

    @property
    def num_waiting(self) -> int:
        return self.scheduler.num_waiting

    @property
    def is_idle(self) -> bool:
        """Whether no request waits or runs."""
        return self.scheduler.is_idle

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

    def start(self) -> None:
        """Begin to serve. Graphs of rounds are recorded first, and with k "auto" the costs of rounds measured."""
        first: Future[object] | None = None
        if self.k == "auto" and self.k_choice.adaptive is None:
            first = self.between_rounds(self.k_choice.measure_costs)
        elif self.decoder.round_graphs is not None:
            first = self.between_rounds(self.decoder.round_graphs.record)
        self._outputs.start()
        self._thread.start()
        if first is not None:
            first.result()

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

    def check_room(self, client: str, count: int) -> None:
        """Raises `QueueFullError` if `submit` would before `count` more of the client's requests wait."""
        self.scheduler.check_room(client, count)

    def submit(self, request: GenerationRequest, on_delta: Callable[[OutputDelta], None]) -> None:
        """Queue a request. `on_delta` is called in the output thread; the last call has a finish reason.

        Raises ValueError for what `Limits` does not allow, `QueueFullError` when too many requests wait, and
        `ShuttingDownError` once the engine takes no more.
        """
        self._limits.check(request)
        seed, recorder = request.params.seed, self.recorder
        sequence = Sequence(
            Output(
                request,
                on_delta,
                self._detokenizer(request),
                eos_id=None if request.params.ignore_eos else self.tokenizer.eos_token_id,
                record=recorder is not None and recorder.wants_next(),
                keeps_states=self.decoder.keeps_states,
            ),
            seed=seed if seed is not None else random.getrandbits(62),
            eos_ids=self.eos_ids,
            estimates=partial(self.k_choice.new_estimates, request.domain),
        )
        with self._wake:
            if self.is_draining:
                raise ShuttingDownError(
                    "the server is shutting down" if self._draining else "the engine has stopped"
                )
            self.scheduler.add(sequence)
            self._wake.notify()

    def _detokenizer(self, request: GenerationRequest) -> Detokenizer:
        """What ends answers is not part of them, special or not, unless it does not end this one."""
        ends = request.params.ends(self.eos_ids)
        silent = self.special_ids if ends <= self.special_ids else self.special_ids | ends
        return Detokenizer(self.tokenizer.backend_tokenizer, silent, request.prompt_ids)

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
        self._steps.draft_version = event.version
        self._outputs.swap(event)

    def step(self) -> None:
        """One turn of the loop; `start` runs it in a thread until `stop`."""
        self._run_errands()
        with self._wake:
            cancelled, self._cancelled = self._cancelled, set()
        self._steps.step(cancelled)

    @property
    def _runners(self) -> dict[str, Runner]:
        proposer = self.decoder.proposer
        drafts = {"draft": proposer.runner} if isinstance(proposer, DraftModel) else {}
        return {"target": self.decoder.target.runner, **drafts}

    def _run(self) -> None:
        if self.computations["target"].runner == "native":
            torch.set_num_threads(1)  # its waiting workers would take the cores from the runner's own
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
        return bool(self._errands or self._cancelled) or not self.scheduler.is_idle

    def _abandon(self, reason: FinishReason) -> None:
        with self._wake:
            self._stopping = True
            while self._errands:
                self._errands.popleft()[1].cancel()
        self._outputs.stop()
        self._steps.abandon(reason)

    def _run_errands(self) -> None:
        while self._errands:
            self._steps.tell()  # it may take long
            errand, future = self._errands.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = errand()
            except Exception as error:  # noqa: BLE001 -- whatever it is, its caller waits for it
                future.set_exception(error)
            else:
                future.set_result(result)
