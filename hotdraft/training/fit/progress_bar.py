"""What a training run shows while it lasts."""

import logging
import math
import time
import warnings
from collections.abc import Callable

import lightning
from lightning.pytorch.callbacks import Callback, RichProgressBar

from hotdraft.pipeline.loop.job_progress import JobProgress
from hotdraft.training.batches.packing import PackedBatch

TELL_SECONDS = 1.0
TOKENS_PER_SECOND = "tokens_per_second"
SHOWN = {"loss": "loss", "overlap": "overlap", "validation/overlap": "held out", TOKENS_PER_SECOND: "tokens/s"}
"""Metrics beside the bar, and what they are called there to fit in a line."""


class StepsBar(RichProgressBar):
    """A bar over the forward passes of the whole run: the time left is that to the last step."""

    @property
    def total_train_batches(self) -> int:
        return self.trainer.max_steps * self.trainer.accumulate_grad_batches

    def get_metrics(self, *arguments: lightning.Trainer | lightning.LightningModule) -> dict:
        items = super().get_metrics(*arguments)  # type: ignore[arg-type]
        return {
            SHOWN[name]: f"{value:,.0f}" if name == TOKENS_PER_SECOND else value
            for name, value in items.items()
            if name in SHOWN
        }

    def _get_train_description(self, current_epoch: int) -> str:
        return "Training"


class ToldProgress(Callback):
    """Has `tell` told how far training is: at its first step, about once a second after it, and when it ended."""

    def __init__(self, tell: Callable[[JobProgress], None], remaining: Callable[[], float | None]) -> None:
        """`remaining` gives the seconds that are left of the time budget; None if there is none."""
        self._tell = tell
        self._remaining = remaining
        self._began = self._told = 0.0
        self._first_step = 0

    def on_train_start(self, trainer: lightning.Trainer, *_: object) -> None:
        self._began, self._first_step = time.monotonic(), trainer.global_step
        self._told = 0.0

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: object) -> None:
        now, step, steps = time.monotonic(), trainer.global_step, trainer.max_steps
        done = step - self._first_step
        if not done or now - self._told < TELL_SECONDS or step == steps:
            return
        self._told = now
        left = (now - self._began) / done * (steps - step)
        if (remaining := self._remaining()) is not None:
            left = min(left, max(0.0, remaining))
        self._tell_of(trainer, left)

    def on_train_end(self, trainer: lightning.Trainer, *_: object) -> None:
        self._tell_of(trainer, 0.0)

    def _tell_of(self, trainer: lightning.Trainer, left: float) -> None:
        loss = float(trainer.callback_metrics.get("loss", math.nan))
        self._tell(JobProgress(trainer.global_step, trainer.max_steps, loss if math.isfinite(loss) else None, left))


class Throughput(Callback):
    """Logs `tokens_per_second`: packed tokens of all processes, without the time that validation takes."""

    def __init__(self, every_steps: int) -> None:
        self._every_steps = every_steps
        self.latest = math.nan
        """What was logged last."""
        self._restart()

    def on_train_start(self, *_: object) -> None:
        self._restart()

    def on_validation_end(self, *_: object) -> None:
        self._restart()

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        module: lightning.LightningModule,
        outputs: object,
        batch: PackedBatch,
        batch_idx: int,
    ) -> None:
        self._tokens += batch.input_ids.numel() * trainer.world_size
        if (batch_idx + 1) % (self._every_steps * trainer.accumulate_grad_batches) == 0:
            self.latest = self._tokens / (time.monotonic() - self._since)
            module.log(TOKENS_PER_SECOND, self.latest, prog_bar=True)
            self._restart()

    def _restart(self) -> None:
        self._tokens = 0
        self._since = time.monotonic()


def quiet_trainer() -> None:
    """Leave out what Lightning says of every trainer it makes."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")
