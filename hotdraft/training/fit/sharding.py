"""Sharding a draft over processes: FSDP2 (Zhao et al., 2023; `torch.distributed.fsdp.fully_shard`)."""

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from transformers.modeling_layers import GradientCheckpointingLayer


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """Shard each layer by itself and what is left together; `model`'s forward pass gathers what it needs.

    Each parameter stays one tensor of its own name and dtype, frozen ones beside trained ones: what the
    first FSDP, which flattens them into one, cannot hold.
    """
    for layer in [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
