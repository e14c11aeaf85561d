"""Whether what is about to be written fits: better told now than found out in hours."""

import math
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a machine that only has torch needs the rest
    from hotdraft.pipeline.config.settings import HotdraftConfig

KEPT_BYTES = 4.0
"""A kept token in a shard: 2.0 were measured for its id, which Parquet's dictionary packs into as many bits as the
vocabulary needs (16 of 49152; 18 of 152k are 2.3), and 1.6 for its log-prob, whose 16 bits zstd shortens."""
POSITION_BYTES = 34
"""Everything else of an output position: 15 were measured for prompts as long as their answers, 31 for prompts four
times as long. 5 are the log of the tail, whose bits look random; a token of the prompt or the answer takes 2,
and what a shard of few requests says of itself 1 more."""


class DiskError(ValueError):
    """Too little space; the message says how much is needed, by what, and how much is free."""


def free_bytes(path: str | Path) -> int:
    """What the disk of `path`, which need not exist yet, has free."""
    return shutil.disk_usage(nearest_folder(path)).free


def free_files(path: str | Path) -> float:
    """How many more files the disk of `path`, which need not exist yet, can have; without a bound infinite."""
    disk = os.statvfs(nearest_folder(path))
    return disk.f_favail if disk.f_files else math.inf


def bytes_in(folder: str | Path) -> int:
    """Of the disk, by all files below `folder`, which need not exist; those that go meanwhile are not counted."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(root, name).lstat().st_blocks * 512
    return total


def recorded_bytes(config: "HotdraftConfig") -> int:
    """Of the run directory's disk, by the replay buffer."""
    return bytes_in(config.replay_url) if config.replay.url is None else 0


def nearest_folder(path: str | Path) -> Path:
    """`path`, or the closest of the folders around it that exists."""
    place = Path(path).absolute()
    return next(folder for folder in (place, *place.parents) if folder.exists())


def require_disk(path: str | Path, needed_bytes: float, what: str) -> None:
    """Raise `DiskError` unless the disk of `path`, which need not exist yet, has `needed_bytes` free for `what`."""
    free = free_bytes(path)
    if free < needed_bytes:
        raise DiskError(
            f"{what} may take {needed_bytes / 1e9:.2f} GB, and the disk of {path} has {free / 1e9:.2f} GB free"
        )


def replay_bytes(output_tokens: int, top_k: int) -> int:
    """Bytes that a replay buffer takes, about, for `output_tokens` with the target's `top_k` likeliest at each."""
    return int(output_tokens * (POSITION_BYTES + KEPT_BYTES * top_k))
