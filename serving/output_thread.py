"""The thread in which everybody hears of rounds, so that the next round need not wait for them."""

import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial

from serving.events import EngineListener, RoundStats, SwapEvent
from serving.output import Output
from serving.recorder import Recorder
from serving.request import FinishReason
from serving.rounds import Round


class OutputThread:
    """Tells listeners, clients and the recorder, in the order of the calls.

    A round is told before the requests that finish in it, and a request is recorded and counted before
    its client hears the end, so that it finds what it looks for. A client that cannot be told ends its own
    request only, which is counted as an "error". Until it is started, and once it is stopped, calls do
    their work on the spot.
    """

    def __init__(self, recorder: Recorder | None, on_failure: Callable[[], None] = lambda: None) -> None:
        self.listeners: list[EngineListener] = []
        self.has_failed = False
        """Whether telling somebody raised; nothing more is told in the thread, which calls `on_failure`."""
        self._on_failure = on_failure
        self._recorder = recorder
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine-output", daemon=True)
        self._is_running = False

    def start(self) -> None:
        self._is_running = True
        self._thread.start()

    def stop(self) -> None:
        """Tell what there is to tell, then end."""
        if self._is_running:
            self._tasks.put(None)
            self._thread.join()
            self._is_running = False

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

    def swap(self, event: SwapEvent) -> None:
        self._submit(partial(self._tell_swap, event))

    def _submit(self, task: Callable[[], None]) -> None:
        if self._is_running:
            self._tasks.put(task)
        else:
            task()

    def _run(self) -> None:
        try:
            while (task := self._tasks.get()) is not None:
                task()
        except BaseException:
            self.has_failed = True
            self._on_failure()
            raise

    def _tell_round(
        self,
        stats: RoundStats,
        outcome: Round,
        outputs: Sequence[Output],
        advances: Sequence[tuple[int, FinishReason | None]],
    ) -> None:
        for listener in self.listeners:
            listener.on_round(stats)
        for row, (output, (count, reason)) in enumerate(zip(outputs, advances, strict=True)):
            if output.finish_reason is not None:  # it met a stop string while this round was under way
                continue
            reason = output.take(outcome, row, count, stats.draft_version) or reason
            if reason is None:
                output.send(None)
                if output.finish_reason is not None:
                    self._count(output, output.finish_reason)
            else:
                self._finish(output, reason)

    def _finish(self, output: Output, reason: FinishReason) -> None:
        if output.finish_reason is not None:
            return
        if reason in ("stop", "length") and self._recorder is not None:
            sample = output.sample()
            if sample is not None:
                self._recorder.record(sample)
        self._count(output, reason)
        output.send(reason)

    def _count(self, output: Output, reason: FinishReason) -> None:
        for listener in self.listeners:
            listener.on_finish(output.request, output.stats(), reason)

    def _tell_swap(self, event: SwapEvent) -> None:
        for listener in self.listeners:
            listener.on_swap(event)
