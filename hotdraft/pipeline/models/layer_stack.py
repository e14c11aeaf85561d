"""Where a model keeps its layers."""

from torch import nn
from transformers import PreTrainedModel

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
