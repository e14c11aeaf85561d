"""The checkpoint that a run goes on from, and stopping at it."""

import math
import os
from pathlib import Path
from typing import Any, Protocol

import lightning
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping


class JobInterruptedError(RuntimeError):
    """A job that was asked to stop; its folder stays and the next job goes on from there."""


class StopSignal(Protocol):
    """The part of `threading.Event` that is needed here."""

    def is_set(self) -> bool: ...


class ResumePoint(Checkpoint):
    """Keeps the whole state of training in the file `path`: every `every_steps` steps, after each validation, and
    at the end, as what follows may be stopped too.

    Never between a step and the validation that is due at it: the run that goes on would not make up
    for it. The file appears by rename, so that a kill leaves the former one or the new one. Raises
    `JobInterruptedError` once `stop` is set, with the state written.
    """

    def __init__(self, path: Path, every_steps: int, validation_steps: int | None, stop: StopSignal | None) -> None:
        self._path = path
        self._every_steps = every_steps
        self._validation_steps = validation_steps
        self._stop = stop
        self.loss = math.nan
        """Of the last step before the state that was written, or gone on from."""
        self._written = -1
        """Steps before that state."""

    def on_train_start(self, trainer: lightning.Trainer, *_: object) -> None:
        """A run that was killed after it had been stopped early is not begun again."""
        for callback in trainer.early_stopping_callbacks:
            assert isinstance(callback, EarlyStopping)
            trainer.should_stop |= callback.wait_count >= callback.patience

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: object, outputs: object, batch: object, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        if self._validation_steps is not None:
            trainer.should_stop |= step >= trainer.max_steps  # which makes the trainer validate
            if trainer.should_stop or step % self._validation_steps == 0:
                return
        stops = self._stop is not None and self._stop.is_set()
        if stops or step % self._every_steps == 0:
            self._save(trainer)
        if stops:
            raise JobInterruptedError(f"the job was asked to stop at step {step}")

    def on_validation_end(self, trainer: lightning.Trainer, *_: object) -> None:
        self._save(trainer)
        if self._stop is not None and self._stop.is_set():
            raise JobInterruptedError(f"the job was asked to stop at step {trainer.global_step}")

    def on_train_end(self, trainer: lightning.Trainer, *_: object) -> None:
        if self._written != trainer.global_step:
            self._save(trainer)

    def state_dict(self) -> dict[str, Any]:
        return {"loss": self.loss}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.loss = state_dict["loss"]

    def _save(self, trainer: lightning.Trainer) -> None:
        self.loss = float(trainer.callback_metrics.get("loss", self.loss))
        temporary = self._path.with_suffix(".tmp")
        trainer.save_checkpoint(temporary, weights_only=False)
        if trainer.is_global_zero:
            os.replace(temporary, self._path)
        self._written = trainer.global_step
        trainer.strategy.barrier()
