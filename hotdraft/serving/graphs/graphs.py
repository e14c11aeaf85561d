"""What captures a graph, and plays it again."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

WARM_UPS = 2
"""Runs ahead of a capture: libraries choose and load their kernels in them."""


class Captured(NamedTuple):
    results: Sequence[Tensor]
    """Where what was captured leaves its results."""
    replay: Callable[[], object]
    """Computes it anew, of what stands then in the memory that it reads."""


class Graphs(Protocol):
    def capture(self, work: Callable[[], Sequence[Tensor]]) -> Captured:
        """Record the operations of `work`, which has to read and write the same memory each time."""
        ...


class CudaGraphs:
    """CUDA's; they share their memory, but for results."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.cuda.device(device):
            self._pool = torch.cuda.graph_pool_handle()

    def capture(self, work: Callable[[], Sequence[Tensor]]) -> Captured:
        """Raises `RuntimeError` where something in `work` cannot be captured, such as a copy to the host."""
        with torch.cuda.device(self._device):
            stream = torch.cuda.current_stream()
            aside = torch.cuda.Stream()
            aside.wait_stream(stream)
            with torch.cuda.stream(aside):
                for _ in range(WARM_UPS):
                    work()
            stream.wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            try:
                # other threads may allocate meanwhile, as those do that prepare a swap
                with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                    results = work()
            finally:
                torch.cuda.set_stream(stream)  # a capture that fails at its end leaves its own
        return Captured(results, graph.replay)
