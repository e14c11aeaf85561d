"""Memory for weights in huge pages: a forward reads all of them, and a core finds 2 MiB at a time, not 4 KiB."""

import mmap
from contextlib import suppress

import torch
from torch import Tensor

BLOCK = 64 << 20
ALIGNMENT = 64


class WeightMemory:
    """Hands out parts of large blocks; a block lives as long as any part of it."""

    def __init__(self) -> None:
        self._block = torch.empty(0, dtype=torch.uint8)

    def take(self, size: int) -> Tensor:
        """uint8 [size], 0 all over, at a multiple of 64 bytes."""
        rounded = -(-size // ALIGNMENT) * ALIGNMENT
        if rounded > len(self._block):
            self._block = _block(max(rounded, BLOCK))
        taken, self._block = self._block[:size], self._block[rounded:]
        return taken


def _block(size: int) -> Tensor:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # of a kernel that was built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
