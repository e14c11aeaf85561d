"""What computes here, and what of the machine this process may take."""

import os
import platform
from collections.abc import Iterator
from pathlib import Path

CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
MEMORY_FILES = ("memory.max", "memory.limit_in_bytes")
"""Of control groups of versions 2 and 1."""


def cpu_name() -> str:
    """The processor's name as Linux has it, else as Python does."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine()
    )


def usable_cores() -> int:
    """Those that this process may run on, or whose time a container grants it if that is less.

    Part of a core is none: threads that meet at barriers all wait for the one whose time is used up.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([cores, *core_limits()])))


def ram_bytes() -> int:
    """The machine's memory, or what this process may take of it if that is less."""
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *memory_limits()])


def memory_limits(root: Path = CGROUPS, own: Path = OWN_CGROUPS) -> Iterator[int]:
    """In bytes, of the control groups that this process is in, and of all above them; none off Linux."""
    for folder in _groups("memory", root, own):
        for name in MEMORY_FILES:
            if limit := _read(folder / name):
                yield int(limit[0])


def core_limits(root: Path = CGROUPS, own: Path = OWN_CGROUPS) -> Iterator[float]:
    """In cores, of the same groups: a quota of time over the period that it is for."""
    for folder in _groups("cpu", root, own):
        limit = _read(folder / "cpu.max") or [
            word for name in ("quota", "period") for word in _read(folder / f"cpu.cfs_{name}_us")
        ]
        if len(limit) == 2:
            yield int(limit[0]) / int(limit[1])


def _groups(controller: str, root: Path, own: Path) -> Iterator[Path]:
    """Folders of the control groups that hold `controller` for this process, the innermost first."""
    for line in own.read_text().splitlines() if own.is_file() else []:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        tree = root / controller if controllers else root
        group = tree / path.lstrip("/")
        for folder in (group, *group.parents):
            yield folder
            if folder == tree:
                break


def _read(file: Path) -> list[str]:
    """The words of a limit; none where there is none that can be read, "max" or -1."""
    try:
        words = file.read_text().split()
    except OSError:
        return []
    return [] if words and words[0] in {"max", "-1"} else words
