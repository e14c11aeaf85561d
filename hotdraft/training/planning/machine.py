"""How much a machine can hold."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from hotdraft.pipeline.system.disk import free_bytes

CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
LIMIT_FILES = ("memory.max", "memory.limit_in_bytes")
"""Of cgroup versions 2 and 1."""


@dataclass(frozen=True)
class Available:
    """What one device and the disk have room for, in bytes."""

    memory: int
    disk: int | None
    """None: another machine's, which nobody can tell from here."""
    name: str


def this_machine(device: torch.device, folder: Path) -> Available:
    """Memory of `device`, and what the disk of `folder`, which need not exist yet, has free."""
    disk = free_bytes(folder)
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return Available(properties.total_memory, disk, properties.name)
    return Available(ram_bytes(), disk, "the machine's memory")


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
