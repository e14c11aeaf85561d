"""Leaving the processor to others: a job beside a server sleeps between its steps."""

import time

import lightning
from lightning.pytorch.callbacks import Callback


class Pace(Callback):
    """Has steps take `share` of the time: after each it sleeps for as long as that asks."""

    def __init__(self, share: float) -> None:
        self._rest = 1 / share - 1
        """Seconds to sleep, for each of work."""
        self._began = 0.0

    def on_train_batch_start(self, trainer: lightning.Trainer, *_: object) -> None:
        self._began = time.perf_counter()

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: object) -> None:
        time.sleep(self._rest * (time.perf_counter() - self._began))
