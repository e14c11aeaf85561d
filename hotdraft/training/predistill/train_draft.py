"""Training a draft by the method that pre-distillation is told: full parameters, LoRA, or LoRA on NF4."""

import gc
import shutil
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import lightning
import torch
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hotdraft.pipeline.config.learning import PredistillConfig
from hotdraft.pipeline.models.adapter_folder import AdapterBase, Quantization, load_adapter
from hotdraft.pipeline.models.loading import load_causal_lm
from hotdraft.training.batches.replay_data import ReplayDataModule
from hotdraft.training.fit.lora import build_lora, card_of, merged_model, save_lora
from hotdraft.training.fit.processes import check_devices, in_processes, strategy_of
from hotdraft.training.fit.run import FitOptions, RunPlace, train
from hotdraft.training.fit.validation import BEST, Validation
from hotdraft.training.scoring.target_reader import give_target, target_given

PARAMETER_PREFIX = "draft.model."
"""What a `DistillationModule` puts before the names of its model's parameters."""
UNNAMED = "untrained"
"""The fingerprint of a draft that exists in memory only."""

Fit = Callable[[PreTrainedModel | PeftModel, torch.dtype], dict[str, float]]


def train_draft(
    draft: PreTrainedModel,
    data: ReplayDataModule,
    settings: PredistillConfig,
    tokenizer: PreTrainedTokenizerBase,
    place: RunPlace,
) -> tuple[PreTrainedModel, dict[str, float]]:
    """The draft as it was at its best look at the held-out prompts, in its own dtype, and what became of it.

    Goes on from the last checkpoint in `place`, in which case `draft` must be what the run began with.
    With `method` full, what does not require a gradient stays as it is and `draft` itself is trained.
    Figures: `steps`, `final_loss`, `train_seconds`, those before a stop too, and `best_step`, that of the returned
    draft.
    Raises `DeviceError` before any work, `NonFiniteLossError`, and `TrainingProcessError`.
    """
    dtype = draft.dtype
    check_devices(settings, draft.device, dtype)
    fit = partial(_fit, data=data, settings=settings, tokenizer=tokenizer, place=place)
    if settings.devices == 1:
        model = trainable(draft, settings)
        metrics = fit(model, dtype)
    else:
        device = draft.device
        draft = draft.cpu()
        gc.collect()
        torch.cuda.empty_cache()  # or the process on the first device had that much less
        metrics = fit_in_processes(draft, settings, fit, place.checkpoints, device)
        draft = draft.to(device)  # type: ignore[arg-type]  # transformers' decorator hides `to`
        model = trainable(draft, settings)
    best = torch.load(place.checkpoints / f"{BEST}.ckpt", map_location=draft.device, weights_only=True)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in best["state_dict"].items():
            parameters[name.removeprefix(PARAMETER_PREFIX)].copy_(tensor)
    if isinstance(model, PeftModel):
        trained = _merged(draft, model, data, settings, place.checkpoints / "adapter")
    else:
        trained = model.to(dtype)  # type: ignore[arg-type]  # transformers' decorator hides `to`
    return trained.eval(), metrics | {"best_step": float(best["global_step"])}


def trainable(draft: PreTrainedModel, settings: PredistillConfig) -> PreTrainedModel | PeftModel:
    """What trains, in float32: all of `draft` that requires a gradient, or an adapter on it."""
    lightning.seed_everything(settings.seed, verbose=False)  # an adapter starts at random
    model: PreTrainedModel | PeftModel
    if settings.method == "full":
        model = draft
        for parameter in draft.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
    else:
        model = build_lora(draft, settings.lora, _quantization(settings))
    if settings.activation_checkpointing:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # transformers 5.10 has no new name
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def _fit(
    model: PreTrainedModel | PeftModel,
    compute: torch.dtype,
    *,
    data: ReplayDataModule,
    settings: PredistillConfig,
    tokenizer: PreTrainedTokenizerBase,
    place: RunPlace,
) -> dict[str, float]:
    options = FitOptions(
        compute=compute,
        warmup_steps=settings.warmup_steps,
        validation=Validation(settings.validation_steps, settings.patience, tokenizer),
        processes=settings.devices,
        strategy=strategy_of(settings),
    )
    return train(model, data, settings, place, options)


def fit_in_processes(
    draft: PreTrainedModel, settings: PredistillConfig, fit: Fit, checkpoints: Path, device: torch.device
) -> dict[str, float]:
    """What `fit` gives in the first of as many processes as `settings` has devices of `device`'s kind.

    They read `draft` from a folder: shared memory, the other way, is small in containers. Raises
    `TrainingProcessError`.
    """
    folder = checkpoints.with_name("start")
    draft.save_pretrained(folder)
    frozen = {name for name, parameter in draft.named_parameters() if not parameter.requires_grad}
    work = partial(
        _fit_in_process,
        folder=folder,
        frozen=frozen,
        dtype=draft.dtype,
        target=target_given(draft),
        settings=settings,
        fit=fit,
    )
    try:
        return in_processes(work, settings.devices, device.type)
    finally:
        shutil.rmtree(folder)


def _fit_in_process(
    device: torch.device,
    *,
    folder: Path,
    frozen: set[str],
    dtype: torch.dtype,
    target: str | None,
    settings: PredistillConfig,
    fit: Fit,
) -> dict[str, float]:
    draft = load_causal_lm(str(folder), dtype=dtype, device=device)
    if target is not None:
        give_target(draft, target)
    for name, parameter in draft.named_parameters():
        parameter.requires_grad_(name not in frozen)
    return fit(trainable(draft, settings), dtype)


def _merged(
    draft: PreTrainedModel, model: PeftModel, data: ReplayDataModule, settings: PredistillConfig, folder: Path
) -> PreTrainedModel:
    """`draft` with the adapter in it, by way of the folder that a served adapter takes, and its checks."""
    card = card_of(draft, UNNAMED, settings.lora, _quantization(settings), data.train_rows)
    save_lora(folder, model, card)
    return merged_model(draft, load_adapter(folder, AdapterBase.of(draft, UNNAMED)))


def _quantization(settings: PredistillConfig) -> Quantization:
    return "nf4" if settings.method == "qlora" else "none"
