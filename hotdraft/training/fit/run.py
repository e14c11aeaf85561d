"""Running the Lightning trainer: budget, precision, logging, checkpoints, and stopping."""

from datetime import timedelta
from pathlib import Path
from typing import Literal

import lightning
import torch
from lightning.pytorch.callbacks import Callback, Timer
from lightning.pytorch.loggers import MLFlowLogger
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities.exceptions import SIGTERMException
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from hotdraft.pipeline.config.learning import TrainingSection
from hotdraft.training.batches.replay_data import ReplayDataModule
from hotdraft.training.fit.module import LOG_EVERY_STEPS, WARMUP_STEPS, DistillationModule
from hotdraft.training.fit.progress_bar import StepsBar, Throughput
from hotdraft.training.fit.resume import JobInterruptedError, ResumePoint, StopSignal
from hotdraft.training.fit.validation import Validation

PRECISION: dict[torch.dtype, Literal["bf16-mixed", "16-mixed", "32-true"]] = {
    torch.bfloat16: "bf16-mixed",
    torch.float16: "16-mixed",
    torch.float32: "32-true",
}
"""How to compute on a frozen base of each dtype; trainable parameters are float32."""


def train(
    model: PeftModel | PreTrainedModel,
    data: ReplayDataModule,
    settings: TrainingSection,
    *,
    tracking_uri: str,
    run_id: str,
    checkpoints: Path,
    progress: bool,
    stop: StopSignal | None = None,
    compute: torch.dtype | None = None,
    warmup_steps: int = WARMUP_STEPS,
    validation: Validation | None = None,
    processes: int = 1,
    strategy: Strategy | Literal["auto"] = "auto",
    vocabulary: Tensor | None = None,
) -> dict[str, float]:
    """Train what is trainable of `model` for `max_steps` or `max_seconds`; gives the last loss and the steps.

    Goes on from `checkpoints/last.ckpt` if there is one; without `max_seconds` it ends where it would have
    ended unbroken. Raises `NonFiniteLossError`, and `JobInterruptedError` once `stop` is set, with a
    checkpoint written, or the process gets SIGTERM.

    Args:
        compute: dtype to compute in; that of the embedding if None.
        validation: looks at `data.validation_samples`; `model` still ends with its last weights.
        vocabulary: what the draft's head covers when served (int64 [S]); everything if None.
        processes: of which this is one, each on a device of its own and under `strategy`.
    """
    device = next(model.parameters()).device
    last = checkpoints / "last.ckpt"
    budget = settings.max_seconds
    timer = Timer(duration=None if budget is None else timedelta(seconds=budget))
    callbacks: list[Callback] = [
        timer,
        Throughput(LOG_EVERY_STEPS),
        *(validation.callbacks(checkpoints, data.validation_samples) if validation else []),
        ResumePoint(last, settings.checkpoint_steps, validation.every_steps if validation else None, stop),
    ]
    if progress:
        callbacks.append(StepsBar())
    module = DistillationModule(
        model,
        loss=settings.loss,
        learning_rate=settings.learning_rate,
        greedy_temperature=settings.greedy_temperature,
        max_steps=settings.max_steps,
        warmup_steps=warmup_steps,
        accumulate=data.accumulate,
        vocabulary=vocabulary,
        # One clock for all processes: they must not differ in their learning rates.
        elapsed_fraction=lambda: trainer.strategy.broadcast(timer.time_elapsed()) / budget if budget else 0.0,
    )
    trainer = lightning.Trainer(
        accelerator="gpu" if device.type == "cuda" else "cpu",
        devices=[device.index or 0] if device.type == "cuda" and processes == 1 else processes,
        strategy=strategy,
        plugins=[LightningEnvironment()],  # whatever scheduler the machine is under
        precision=PRECISION[compute or next(model.get_input_embeddings().parameters()).dtype],
        max_steps=settings.max_steps,
        accumulate_grad_batches=data.accumulate,
        gradient_clip_val=1.0,
        logger=MLFlowLogger(tracking_uri=tracking_uri, run_id=run_id),
        callbacks=callbacks,
        log_every_n_steps=LOG_EVERY_STEPS,
        limit_val_batches=None if validation else 0,
        check_val_every_n_epoch=None if validation else 1,
        val_check_interval=validation.every_steps * data.accumulate if validation else None,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_progress_bar=progress,
        enable_model_summary=False,
        default_root_dir=checkpoints,
    )
    try:
        trainer.fit(module.train(), data, ckpt_path=last if last.is_file() else None, weights_only=True)
    except SIGTERMException as error:
        raise JobInterruptedError("the job got SIGTERM") from error
    module.to(device)  # the trainer moves a model off the GPU when it ends
    loss = trainer.callback_metrics.get("loss", torch.tensor(torch.nan))
    return {"steps": float(trainer.global_step), "final_loss": float(loss)}
