"""Which of a target's layers a draft is cut from."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from hotdraft.pipeline.config.learning import PredistillConfig
from hotdraft.pipeline.models.layer_stack import layer_output, layer_stack
from hotdraft.pipeline.models.names import ModelError


def check_layers(settings: PredistillConfig, count: int) -> None:
    """Raise `ModelError` unless `settings.layers` can be had from a target of `count` layers."""
    layers = settings.layers
    if isinstance(layers, int):
        if not 1 <= layers <= count:
            raise ModelError(f"predistill.layers is {layers}, and the target has {count} layers")
    elif not layers or list(layers) != sorted(set(layers)) or not 0 <= layers[0] <= layers[-1] < count:
        raise ModelError(
            f"predistill.layers must be distinct indices from 0 to {count - 1} in ascending order, at least one, "
            f"not {list(layers)}"
        )


def choose_layers(target: PreTrainedModel, settings: PredistillConfig, batches: Sequence[Tensor]) -> list[int]:
    """Indices of the target's layers that `settings` ask for, ascending.

    `batches` are ids of text, int64 [B, T], which only a choice by importance reads. Raises `ModelError`
    for layers that the target has not, and if importance is asked for without text.
    """
    count = target.config.num_hidden_layers
    check_layers(settings, count)
    if isinstance(settings.layers, list):
        return list(settings.layers)
    if settings.layer_choice == "even":
        return even_layers(count, settings.layers)
    if not batches:
        raise ModelError("layers are chosen by importance on text, and there is none")
    return most_important(block_influence(target, batches), settings.layers)


def even_layers(count: int, number: int) -> list[int]:
    """`number` of `count` layers, evenly spread from the first to the last."""
    return np.linspace(0, count - 1, number).round().astype(int).tolist()


def most_important(influence: Tensor, number: int) -> list[int]:
    """Indices of the `number` highest of `influence` [L], ascending; the lower index wins among equals."""
    return sorted(influence.argsort(descending=True, stable=True)[:number].tolist())


def block_influence(model: PreTrainedModel, batches: Iterable[Tensor]) -> Tensor:
    """How much each layer changes the hidden state: 1 − cos(input, output), mean over tokens; float64 [L].

    Men et al., "ShortGPT" (2024), equation 1. `batches` are ids of text without padding, int64 [B, T].
    """
    _, layers = layer_stack(model)
    sums = torch.zeros(len(layers), dtype=torch.float64)
    tokens = 0

    def add(index: int, before: Tensor, after: Tensor) -> None:
        change = 1 - F.cosine_similarity(before.float(), after.float(), dim=-1)
        sums[index] += change.double().sum().item()

    def hook(index: int) -> Any:
        def compare(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            before = args[0] if args else kwargs["hidden_states"]
            add(index, before, layer_output(output))

        return compare

    handles = [layer.register_forward_hook(hook(i), with_kwargs=True) for i, layer in enumerate(layers)]
    try:
        for ids in batches:
            tokens += ids.numel()
            read_text(model, ids)
    finally:
        for handle in handles:
            handle.remove()
    return sums / tokens


@torch.no_grad()
def read_text(model: PreTrainedModel, ids: Tensor) -> None:
    """Run the layers, and not the output head, on `ids` (int64 [B, T]) for what hooks see of it."""
    model.base_model(input_ids=ids.to(model.device), use_cache=False)
