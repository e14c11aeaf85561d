"""How fast this process can read memory: the limit of plain decoding, which reads all weights a token."""

import time

import torch

FLOATS = 192 * 1024 * 1024
"""768 MiB of float32: far beyond any cache."""


def read_bandwidth(repeats: int = 5, floats: int = FLOATS) -> float:
    """Bytes a second of a sum over `floats` float32, with torch's threads; the best of `repeats`."""
    data = torch.ones(floats)
    best = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        data.sum()
        best = min(best, time.perf_counter() - started)
    return 4 * floats / best
