"""Cutting a draft from a target: some of its layers, its embedding and head shared and frozen."""

import copy
from collections.abc import Sequence

from torch import nn
from transformers import PreTrainedModel

from pipeline.models import ModelError, from_state, shared_modules


def cut_layers(target: PreTrainedModel, layers: Sequence[int]) -> PreTrainedModel:
    """A model of the target's architecture with copies of `layers` only; the target is left as it is.

    Raises `ModelError` for an empty list or an index the target does not have.
    """
    count = target.config.num_hidden_layers
    bad = [layer for layer in layers if not 0 <= layer < count]
    if not layers or bad:
        raise ModelError(f"layers must be one or more indices from 0 to {count - 1}, not {list(layers)}")
    config = copy.deepcopy(target.config)
    config.num_hidden_layers = len(layers)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[layer] for layer in layers]
    stack = _layer_stack(target, count)
    state = {}
    for name, tensor in target.state_dict().items():
        if not name.startswith(f"{stack}."):
            state[name] = tensor.clone()
            continue
        layer, _, rest = name.removeprefix(f"{stack}.").partition(".")
        state.update(
            {f"{stack}.{new}.{rest}": tensor.clone() for new, old in enumerate(layers) if old == int(layer)}
        )
    return from_state(config, state, dtype=target.dtype).to(target.device)  # type: ignore[arg-type]  # transformers' decorator hides `to`


def freeze_shared(draft: PreTrainedModel) -> None:
    """Leave embedding and head as the target's: they stay out of training and out of the draft's file."""
    for module in shared_modules(draft):
        module.requires_grad_(False)


def _layer_stack(model: PreTrainedModel, count: int) -> str:
    stacks = [
        name for name, module in model.named_modules() if isinstance(module, nn.ModuleList) and len(module) == count
    ]
    if len(stacks) != 1:
        raise ModelError(f"cannot tell which of {stacks} holds the {count} layers of {type(model).__name__}")
    return stacks[0]
