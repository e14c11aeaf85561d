"""The thread in which everybody hears of rounds, so that the next round need not wait for them."""

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from hotdraft.serving.decoding.rounds import Round
from hotdraft.serving.engine.failures import Failures
from hotdraft.serving.engine.output import Output
from hotdraft.serving.engine.recorder import Recorder
from hotdraft.serving.messages.events import EngineListener, RoundStats, SwapEvent
from hotdraft.serving.messages.request import FinishReason


class OutputThread:
    """Tells listeners, clients and the recorder, in the order of the calls.

    A round is told before the requests that finish in it, and a request is recorded and counted before
    its client hears the end, so that it finds what it looks for; recorded after it where a stop string ends a
    request whose states are kept, which its row has first to give. A client that cannot be told ends its own
    request only, which is counted as an "error"; a listener that raises misses what it was told, and a
    sample that cannot be made is lost. Until it is started, and once it is stopped, calls do their work on
    the spot.
    """

    def __init__(self, recorder: Recorder | None, failures: Failures) -> None:
        self.listeners: list[EngineListener] = []
        self._failures = failures
        self.recorder = recorder
        if recorder is not None:
            recorder.failures = failures
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine-output", daemon=True)
        self._is_running = False
        self._lock = threading.Lock()
        """For whether it runs: what is asked for while it ends would be heard by nobody."""

    def start(self) -> None:
        self._is_running = True
        self._thread.start()

    def stop(self) -> None:
        """Tell what there is to tell, then end."""
        if self._is_running:
            self._tasks.put(None)
            self._thread.join()
            with self._lock:
                self._is_running = False
            while not self._tasks.empty():  # what was asked for meanwhile
                if (task := self._tasks.get()) is not None:
                    task()

    def round(
        self,
        stats: RoundStats,
        outcome: Round,
        outputs: Sequence[Output],
        advances: Sequence[tuple[int, FinishReason | None]],
    ) -> None:
        """Row i of the outcome is that of `outputs[i]`, which takes as many tokens as `advances[i]` says."""
        self._submit(partial(self._tell_round, stats, outcome, outputs, advances))

    def finish(self, output: Output, reason: FinishReason) -> None:
        self._submit(partial(self._finish, output, reason))

    def record_with(self, recorder: Recorder | None) -> "Future[Recorder | None]":
        """From now on; gives the one before, which hears of nothing more."""
        before: Future[Recorder | None] = Future()

        def exchange() -> None:
            previous, self.recorder = self.recorder, recorder
            if recorder is not None:
                recorder.failures = self._failures
            before.set_result(previous)

        self._submit(exchange)
        return before

    def swap(self, event: SwapEvent) -> None:
        self._submit(partial(self._tell_listeners, lambda listener: listener.on_swap(event)))

    def _submit(self, task: Callable[[], None]) -> None:
        with self._lock:
            if self._is_running:
                self._tasks.put(task)
                return
        task()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()

    def _tell_round(
        self,
        stats: RoundStats,
        outcome: Round,
        outputs: Sequence[Output],
        advances: Sequence[tuple[int, FinishReason | None]],
    ) -> None:
        self._tell_listeners(lambda listener: listener.on_round(stats))
        for row, (output, (count, reason)) in enumerate(zip(outputs, advances, strict=True)):
            if output.finish_reason is not None:  # it met a stop string while this round was under way
                if reason is not None:
                    self._record_late(output)
                continue
            try:
                if reason != "error":
                    row_goes_on = reason is None
                    reason = output.take(outcome, row, count, stats.draft_version) or reason
                    output.is_recorded_late = output.keeps_states and row_goes_on and reason is not None
                if reason is None:
                    output.send(None)
            except Exception as error:  # noqa: BLE001 -- it is this row's, the others are told
                self._failures.add("output", error, "its request ends")
                reason = "error"
            if reason is not None:
                self._finish(output, reason)
            elif output.finish_reason is not None:
                self._count(output, output.finish_reason)

    def _finish(self, output: Output, reason: FinishReason) -> None:
        if output.finish_reason is not None:
            self._record_late(output)
            return
        if reason in ("stop", "length") and not output.is_recorded_late:
            self._record(output)
        self._count(output, reason)
        try:
            output.send(reason)
        except Exception as error:  # noqa: BLE001 -- its client must hear an end
            self._failures.add("output", error, "its request ends")
            output.fail()

    def _record_late(self, output: Output) -> None:
        if output.is_recorded_late:
            output.is_recorded_late = False
            self._record(output)

    def _record(self, output: Output) -> None:
        if self.recorder is None:
            return
        try:
            sample = output.sample()
            if sample is not None:
                self.recorder.record(sample, output.states)
        except Exception as error:  # noqa: BLE001 -- its client has its answer all the same
            self._failures.add("record", error, "its sample is lost")

    def _count(self, output: Output, reason: FinishReason) -> None:
        if self.recorder is not None and output.left_out is not None:
            self.recorder.left_out[output.left_out] += 1
        self._tell_listeners(lambda listener: listener.on_finish(output.request, output.stats(), reason))

    def _tell_listeners(self, tell: Callable[[EngineListener], None]) -> None:
        for listener in self.listeners:
            try:
                tell(listener)
            except Exception as error:  # noqa: BLE001 -- who listens is no reason to stop serving
                self._failures.add("listener", error, f"{type(listener).__name__} misses something")
