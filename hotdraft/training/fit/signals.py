"""Ending a run at Ctrl-C, or as its machine goes down, without losing the steps since its last checkpoint."""

import signal
from types import FrameType
from typing import Any

from lightning.pytorch.callbacks import Callback

NUMBERS = (signal.SIGINT, signal.SIGTERM)


class StopAtSignals(Callback):
    """A `StopSignal` that the first SIGINT or SIGTERM during training sets; a second does what it does elsewhere.

    Lightning ends a run at once, within a step or a look, where nothing can be kept of it. Its own handlers, which
    it has set by the time that training starts, are passed over.
    """

    def __init__(self) -> None:
        self._asked = False
        self._before: dict[int, Any] = {}

    def is_set(self) -> bool:
        return self._asked

    def on_train_start(self, *_: object) -> None:
        for number in NUMBERS:
            self._before[number] = signal.signal(number, self._ask)

    def on_train_end(self, *_: object) -> None:
        self._restore()

    def on_exception(self, *_: object) -> None:
        self._restore()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
