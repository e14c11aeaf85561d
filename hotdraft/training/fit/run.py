"""Running the Lightning trainer: budget, precision, logging, checkpoints, and stopping."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from hotdraft.pipeline.loop.job_progress import JobProgress
from hotdraft.training.batches.replay_data import ReplayDataModule
from hotdraft.training.fit.module import LOG_EVERY_STEPS, WARMUP_STEPS, DistillationModule
from hotdraft.training.fit.pace import Pace
from hotdraft.training.fit.progress_bar import StepsBar, Throughput, ToldProgress
from hotdraft.training.fit.resume import JobInterruptedError, ResumePoint, StopSignal
from hotdraft.training.fit.signals import StopAtSignals
from hotdraft.training.fit.validation import Validation

PRECISION: dict[torch.dtype, Literal["bf16-mixed", "16-mixed", "32-true"]] = {
    torch.bfloat16: "bf16-mixed",
    torch.float16: "16-mixed",
    torch.float32: "32-true",
}
"""How to compute on a frozen base of each dtype; trainable parameters are float32."""


@dataclass(frozen=True)
class RunPlace:
    """Where a run leaves its traces, whether it shows itself, and what ends it before its time."""

    tracking_uri: str
    run_id: str | None
    """The MLflow run; None logs nothing."""
    checkpoints: Path
    progress: bool
    stop: StopSignal | None = None
    tell: Callable[[JobProgress], None] | None = None
    """Is told how far training is, by a run of one process."""


@dataclass(frozen=True)
class FitOptions:
    compute: torch.dtype | None = None
    """To compute in; the embedding's if None."""
    warmup_steps: int = WARMUP_STEPS
    validation: Validation | None = None
    """Looks at `data.validation_samples`; the model still ends with its last weights."""
    vocabulary: Tensor | None = None
    """int64 [S]: what the draft's head covers when served; everything if None."""
    prompt_steps: int = 0
    """Steps that prompts are kept for; 0 reads them anew at each, with gradient."""
    momentum: float = 0.9
    """AdamW's first beta."""
    share: float = 1.0
    """Of the time that steps may take; see `Pace`."""
    processes: int = 1
    """Of which this is one, each on a device of its own and under `strategy`."""
    strategy: Strategy | Literal["auto"] = "auto"
    beside: Sequence[Callback] = ()
    """Of Lightning's callbacks, more."""
    throughput: Throughput | None = None
    """Takes the speed; by default every `LOG_EVERY_STEPS` steps."""


def train(
    model: PeftModel | PreTrainedModel,
    data: ReplayDataModule,
    settings: TrainingSection,
    place: RunPlace,
    options: FitOptions,
) -> dict[str, float]:
    """Train what is trainable of `model` for `max_steps` or `max_seconds`; gives last loss, steps and seconds.

    Goes on from `last.ckpt` in `place.checkpoints` if there is one; without `max_seconds` it ends where it would
    have ended unbroken, or about there where prompts are kept. Raises `NonFiniteLossError`, and
    `JobInterruptedError`, with a checkpoint written, once `place.stop` is set or its one process gets a signal.
    """
    device = next(model.parameters()).device
    last, validation = place.checkpoints / "last.ckpt", options.validation
    budget = settings.max_seconds
    timer = Timer(duration=None if budget is None else timedelta(seconds=budget))
    validation_steps = None if validation is None else validation.every_steps
    stop = StopAtSignals(place.stop) if options.processes == 1 else None  # several hear of none, and are killed
    resume = ResumePoint(last, settings.checkpoint_steps, validation_steps, stop)
    callbacks: list[Callback] = [
        timer,
        *([] if stop is None else [stop]),
        *options.beside,
        options.throughput or Throughput(LOG_EVERY_STEPS),
        *(validation.callbacks(place.checkpoints, data.validation_samples) if validation else []),
        resume,
    ]
    if options.share < 1:
        callbacks.insert(0, Pace(options.share))
    if place.tell is not None:
        callbacks.append(ToldProgress(place.tell, timer.time_remaining))
    if place.progress:
        callbacks.append(StepsBar())
    module = DistillationModule(
        model,
        loss=settings.loss,
        learning_rate=settings.learning_rate,
        greedy_temperature=settings.greedy_temperature,
        max_steps=settings.max_steps,
        warmup_steps=options.warmup_steps,
        accumulate=data.accumulate,
        vocabulary=options.vocabulary,
        prompt_steps=options.prompt_steps,
        momentum=options.momentum,
        # One clock for all processes: they must not differ in their learning rates.
        elapsed_fraction=lambda: trainer.strategy.broadcast(timer.time_elapsed()) / budget if budget else 0.0,
    )
    trainer = lightning.Trainer(
        accelerator="gpu" if device.type == "cuda" else "cpu",
        devices=[device.index or 0] if device.type == "cuda" and options.processes == 1 else options.processes,
        strategy=options.strategy,
        plugins=[LightningEnvironment()],  # whatever scheduler the machine is under
        precision=PRECISION[options.compute or next(model.get_input_embeddings().parameters()).dtype],
        max_steps=settings.max_steps,
        accumulate_grad_batches=data.accumulate,
        gradient_clip_val=1.0,
        logger=MLFlowLogger(tracking_uri=place.tracking_uri, run_id=place.run_id) if place.run_id else False,
        callbacks=callbacks,
        log_every_n_steps=LOG_EVERY_STEPS,
        limit_val_batches=None if validation else 0,
        check_val_every_n_epoch=None if validation else 1,
        val_check_interval=validation.every_steps * data.accumulate if validation else None,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_progress_bar=place.progress,
        enable_model_summary=False,
        default_root_dir=place.checkpoints,
    )
    try:
        trainer.fit(module.train(), data, ckpt_path=last if last.is_file() else None, weights_only=True)
    except SIGTERMException as error:
        raise JobInterruptedError("the job got SIGTERM") from error
    except SystemExit as error:  # without a word, is what Lightning makes of Ctrl-C
        raise JobInterruptedError("the job got SIGINT") from error
    module.to(device)  # the trainer moves a model off the GPU when it ends
    loss = float(trainer.callback_metrics.get("loss", resume.loss))
    return {"steps": float(trainer.global_step), "final_loss": loss, "train_seconds": timer.time_elapsed()}
