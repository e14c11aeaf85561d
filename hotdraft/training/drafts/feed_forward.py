"""Narrowing feed-forward layers of the gate/up/down kind (Llama, Mistral, Qwen, Gemma): which channels stay."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hotdraft.pipeline.models.names import ModelError
from hotdraft.training.drafts.layer_choice import layer_stack, read_text

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def check_narrowable(model: PreTrainedModel, width: int) -> None:
    """Raise `ModelError` unless every layer has a gate/up/down MLP of at least `width` channels.

    Looks at shapes only: a model on the `meta` device will do.
    """
    size: Any = getattr(model.config, "intermediate_size", None)
    for layer in layer_stack(model)[1]:
        mlp: Any = getattr(layer, "mlp", None)
        plain = all(isinstance(getattr(mlp, name, None), nn.Linear) for name in PROJECTIONS)
        if not plain or mlp.down_proj.in_features != size:
            raise ModelError(
                f"predistill.feed_forward needs layers with an mlp of {', '.join(PROJECTIONS)}, "
                f"which those of {type(model).__name__} are not"
            )
    if width > size:
        raise ModelError(f"predistill.feed_forward is {width}, and the target's layers have {size} channels")


def choose_channels(
    target: PreTrainedModel, layers: Sequence[int], width: int, batches: Sequence[Tensor]
) -> list[Tensor]:
    """The `width` most important channels of each of `layers`, int64 [width], ascending."""
    return [
        importance.argsort(descending=True, stable=True)[:width].sort().values
        for importance in channel_importance(target, layers, batches)
    ]


@torch.no_grad()
def channel_importance(model: PreTrainedModel, layers: Sequence[int], batches: Sequence[Tensor]) -> list[Tensor]:
    """What each channel adds to the hidden state, float32 [F] for each of `layers`.

    Mean |activation| on the text `batches` (ids without padding, int64 [B, T]), times the norm of the
    channel's column in the down-projection: Wanda's score (Sun et al., 2024) for whole channels. Without
    text the norms of its rows in gate and up stand for the activation.
    """
    blocks: list[Any] = [layer_stack(model)[1][layer].mlp for layer in layers]
    if batches:
        sizes = _mean_activations(model, blocks, batches)
    else:
        sizes = [_norms(block.gate_proj, dim=1) * _norms(block.up_proj, dim=1) for block in blocks]
    return [size * _norms(block.down_proj, dim=0) for size, block in zip(sizes, blocks, strict=True)]


def narrowed(name: str, tensor: Tensor, channels: Tensor) -> Tensor:
    """A layer's tensor `name` with only `channels` [m] of its MLP; a tensor of anything else as it is."""
    if name.startswith(("mlp.gate_proj.", "mlp.up_proj.")):
        return tensor[channels.to(tensor.device)]
    if name == "mlp.down_proj.weight":
        return tensor[:, channels.to(tensor.device)]
    return tensor


def _mean_activations(model: PreTrainedModel, blocks: Sequence[Any], batches: Sequence[Tensor]) -> list[Tensor]:
    sums = [torch.zeros(block.down_proj.in_features, device=model.device) for block in blocks]

    def add(total: Tensor, _: nn.Module, args: tuple[Tensor, ...]) -> None:
        total += args[0].float().abs().flatten(0, -2).sum(0)

    handles = [
        block.down_proj.register_forward_pre_hook(partial(add, total))
        for block, total in zip(blocks, sums, strict=True)
    ]
    try:
        for ids in batches:
            read_text(model, ids)
    finally:
        for handle in handles:
            handle.remove()
    tokens = sum(ids.numel() for ids in batches)
    return [total / tokens for total in sums]


def _norms(linear: nn.Linear, dim: int) -> Tensor:
    return linear.weight.float().norm(dim=dim)
