"""What transformers' models call their parts: where the layers are, what one gives, how a cache is handed over."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import Cache, PreTrainedModel

from hotdraft.pipeline.models.names import ModelError


def layer_stack(model: PreTrainedModel) -> tuple[str, nn.ModuleList]:
    """Name and modules of the model's layers. Raises `ModelError` where that cannot be told."""
    count = model.config.num_hidden_layers
    stacks = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count
    ]
    if len(stacks) != 1:
        names = [name for name, _ in stacks]
        raise ModelError(f"cannot tell which of {names} holds the {count} layers of {type(model).__name__}")
    return stacks[0]


def hook_states(model: PreTrainedModel, take: Callable[[int, Tensor], object]) -> list[RemovableHandle]:
    """Have every forward tell `take` the states [B, T, H] behind each layer, and how many layers that is."""

    def hook(behind: int, _: nn.Module, __: object, output: Any) -> None:
        take(behind, layer_output(output))

    _, layers = layer_stack(model)
    return [layer.register_forward_hook(partial(hook, number)) for number, layer in enumerate(layers, 1)]


def layer_output(output: Any) -> Tensor:
    """The states that a layer gave: some give others beside them."""
    return output[0] if isinstance(output, tuple) else output


def with_cache(model: nn.Module, cache: Cache) -> dict[str, Any]:
    """Arguments of a forward of `model` over what `cache` holds, which goes on in it.

    From transformers 5.24 on models take a `cache`, which most called `past_key_values` before.
    """
    taken = inspect.signature(model.forward).parameters
    return {"cache" if "cache" in taken else "past_key_values": cache, "use_cache": True}
