"""Running the Lightning trainer: budget, precision, logging, checkpoints, and stopping."""

from datetime import timedelta
from pathlib import Path
from typing import Literal, Protocol

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, RichProgressBar, Timer
from lightning.pytorch.loggers import MLFlowLogger
from lightning.pytorch.utilities.exceptions import SIGTERMException
from peft import PeftModel
from transformers import PreTrainedModel

from pipeline.config import TrainingSection
from training.data import ReplayDataModule
from training.module import LOG_EVERY_STEPS, DistillationModule

PRECISION: dict[torch.dtype, Literal["bf16-mixed", "16-mixed", "32-true"]] = {
    torch.bfloat16: "bf16-mixed",
    torch.float16: "16-mixed",
    torch.float32: "32-true",
}
"""How to compute on a frozen base of each dtype; trainable parameters are float32."""


class JobInterruptedError(RuntimeError):
    """A job that was asked to stop; its folder stays and the next job goes on from there."""


class StopSignal(Protocol):
    """The part of `threading.Event` that is needed here."""

    def is_set(self) -> bool: ...


def train(
    model: PeftModel | PreTrainedModel,
    data: ReplayDataModule,
    settings: TrainingSection,
    *,
    tracking_uri: str,
    run_id: str,
    checkpoints: Path,
    progress: bool,
    stop: StopSignal | None,
) -> dict[str, float]:
    """Train what is trainable of `model` for `max_steps` or `max_seconds`; gives the last loss and the steps.

    Goes on from `checkpoints/last.ckpt` if there is one. Raises `NonFiniteLossError`, and
    `JobInterruptedError` once `stop` is set or the process gets SIGTERM, with a checkpoint written.
    """
    device = next(model.parameters()).device
    last = checkpoints / "last.ckpt"
    timer = Timer(duration=timedelta(seconds=settings.max_seconds))
    stopper = _StopOn(stop, last)
    periodic = ModelCheckpoint(
        checkpoints, filename="last", every_n_train_steps=settings.checkpoint_steps, enable_version_counter=False
    )
    callbacks: list[Callback] = [timer, stopper, periodic]
    if progress:
        callbacks.append(RichProgressBar())
    module = DistillationModule(
        model,
        learning_rate=settings.learning_rate,
        max_steps=settings.max_steps,
        elapsed_fraction=lambda: timer.time_elapsed("train") / settings.max_seconds,
    )
    trainer = lightning.Trainer(
        accelerator="gpu" if device.type == "cuda" else "cpu",
        devices=[device.index or 0] if device.type == "cuda" else 1,
        precision=PRECISION[next(model.get_input_embeddings().parameters()).dtype],
        max_steps=settings.max_steps,
        gradient_clip_val=1.0,
        logger=MLFlowLogger(tracking_uri=tracking_uri, run_id=run_id),
        callbacks=callbacks,
        log_every_n_steps=LOG_EVERY_STEPS,
        limit_val_batches=0,
        enable_progress_bar=progress,
        enable_model_summary=False,
        default_root_dir=checkpoints,
    )
    try:
        trainer.fit(module.train(), data, ckpt_path=last if last.is_file() else None, weights_only=True)
    except SIGTERMException as error:
        raise JobInterruptedError("the job got SIGTERM") from error
    if stopper.stopped:
        raise JobInterruptedError(f"the job was asked to stop at step {trainer.global_step}")
    module.to(device)  # the trainer moves a model off the GPU when it ends
    loss = trainer.callback_metrics.get("loss", torch.tensor(torch.nan))
    return {"steps": float(trainer.global_step), "final_loss": float(loss)}


class _StopOn(Callback):
    """Ends training with a checkpoint at the first step's end at which `stop` is set."""

    def __init__(self, stop: StopSignal | None, checkpoint: Path) -> None:
        self._stop = stop
        self._checkpoint = checkpoint
        self.stopped = False

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: object) -> None:
        if self._stop is not None and self._stop.is_set():
            self.stopped = True
            trainer.save_checkpoint(self._checkpoint)
            trainer.should_stop = True
