"""How much a machine can hold."""

from dataclasses import dataclass
from pathlib import Path

import torch

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import choose_device
from hotdraft.pipeline.system.disk import bytes_in, free_bytes, recorded_bytes
from hotdraft.pipeline.system.resources import ram_bytes


@dataclass(frozen=True)
class Available:
    """What one device and the disk have room for, in bytes."""

    memory: int
    disk: int | None
    """What a run that goes on has written is its own. None: another machine's, which nobody can tell from here."""
    name: str


def available_for(config: HotdraftConfig, memory_gb: float | None = None) -> Available:
    """What a run on this machine has; or on another, whose device has `memory_gb`. Raises `ModelError`."""
    if memory_gb is not None:
        return Available(int(memory_gb * 1e9), None, "as given")
    written = bytes_in(checkpoints_of(config)) + recorded_bytes(config)
    device, disk = choose_device(config.device), free_bytes(config.run_dir) + written
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return Available(properties.total_memory, disk, properties.name)
    return Available(ram_bytes(), disk, "the machine's memory")


def checkpoints_of(config: HotdraftConfig) -> Path:
    """Folder of a pre-distillation's checkpoints."""
    return config.run_dir / "checkpoints"
