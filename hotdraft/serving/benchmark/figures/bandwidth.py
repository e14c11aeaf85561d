"""How fast this process can read memory: the limit of plain decoding, which reads all weights a token."""

import time

import torch

from hotdraft.pipeline.system.transfer import synchronize

FLOATS = 192 * 1024 * 1024
"""768 MiB of float32: far beyond any cache."""
REPEATS = 5


def read_bandwidth(device: torch.device) -> float:
    """Bytes a second of a sum in the memory of `device`, the best of `REPEATS`; on a CPU torch's threads read."""
    data = torch.ones(FLOATS, device=device)
    best = float("inf")
    for _ in range(REPEATS):
        synchronize(device)
        started = time.perf_counter()
        data.sum()
        synchronize(device)
        best = min(best, time.perf_counter() - started)
    return data.nbytes / best
