"""How much a machine can hold."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import choose_device
from hotdraft.pipeline.system.disk import bytes_in, free_bytes, recorded_bytes

CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
LIMIT_FILES = ("memory.max", "memory.limit_in_bytes")
"""Of cgroup versions 2 and 1."""


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


def ram_bytes() -> int:
    """The machine's memory, or what this process may take of it if that is less."""
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *memory_limits()])


def memory_limits(root: Path = CGROUPS, own: Path = OWN_CGROUPS) -> Iterator[int]:
    """Limits of the control groups that this process is in, and of all above them, in bytes; none off Linux."""
    lines = own.read_text().splitlines() if own.is_file() else []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        tree = root / "memory" if controllers else root
        group = tree / path.lstrip("/")
        for folder in (group, *group.parents):
            yield from _limits_in(folder)
            if folder == tree:
                break


def _limits_in(folder: Path) -> Iterator[int]:
    for name in LIMIT_FILES:
        file = folder / name
        if file.is_file() and (text := file.read_text().strip()) != "max":
            yield int(text)
