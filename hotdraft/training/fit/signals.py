"""Ending a run at a signal, at which Lightning ends it within a step or a look, where nothing can be kept of it."""

import signal
import threading
from contextlib import ExitStack
from threading import Event

from lightning.pytorch.callbacks import Callback

from hotdraft.pipeline.processes.stop_signals import stopped_by_signals
from hotdraft.training.fit.resume import StopSignal


class StopAtSignals(Callback):
    """A `StopSignal` that is set once `asked` is, and that hears signals for a caller who does not.

    Who has a handler of SIGTERM as this is made has it during training too. For anybody else the first of
    `stop_signals` sets it; a second does what it does elsewhere. Lightning's own handler, which it has set by the
    time that training starts, is passed over.
    """

    def __init__(self, asked: StopSignal | None) -> None:
        self._asked = asked
        self._before = signal.getsignal(signal.SIGTERM)
        self._handlers = ExitStack()
        self._stop = Event()

    def is_set(self) -> bool:
        return self._stop.is_set() or (self._asked is not None and self._asked.is_set())

    def on_train_start(self, *_: object) -> None:
        if self._before is None or threading.current_thread() is not threading.main_thread():
            return  # a handler that is not Python's, or a thread that can set none
        signal.signal(signal.SIGTERM, self._before)
        if self._before is signal.SIG_DFL:
            self._stop = self._handlers.enter_context(stopped_by_signals())

    def on_train_end(self, *_: object) -> None:
        self._handlers.close()

    def on_exception(self, *_: object) -> None:
        self._handlers.close()
