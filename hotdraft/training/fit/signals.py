"""Ending a run at a signal, at which Lightning ends it within a step or a look, where nothing can be kept of it."""

from contextlib import ExitStack
from threading import Event

from lightning.pytorch.callbacks import Callback

from hotdraft.pipeline.processes.stop_signals import stopped_by_signals


class StopAtSignals(Callback):
    """A `StopSignal` that the first SIGINT or SIGTERM during training sets; a second does what it does elsewhere.

    Lightning's own handlers, which it has set by the time that training starts, are passed over.
    """

    def __init__(self) -> None:
        self._handlers = ExitStack()
        self._stop = Event()

    def is_set(self) -> bool:
        return self._stop.is_set()

    def on_train_start(self, *_: object) -> None:
        self._stop = self._handlers.enter_context(stopped_by_signals())

    def on_train_end(self, *_: object) -> None:
        self._handlers.close()

    def on_exception(self, *_: object) -> None:
        self._handlers.close()
