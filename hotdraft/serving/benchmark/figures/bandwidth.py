"""How fast this process can read memory: the limit of plain decoding, which reads all weights a token."""

import time

import torch

from hotdraft.pipeline.system.transfer import synchronize

FLOATS = 192 * 1024 * 1024
"""768 MiB of float32: far beyond any cache."""


def read_bandwidth(device: torch.device, repeats: int = 5, floats: int = FLOATS) -> float:
    """Bytes a second of a sum over `floats` float32 in the memory of `device`; the best of `repeats`.

    On a CPU torch's threads read.
    """
    data = torch.ones(floats, device=device)
    best = float("inf")
    for _ in range(repeats):
        synchronize(device)
        started = time.perf_counter()
        data.sum()
        synchronize(device)
        best = min(best, time.perf_counter() - started)
    return 4 * floats / best
