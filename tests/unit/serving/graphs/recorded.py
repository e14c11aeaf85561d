"""A stand-in for CUDA's graphs."""

from collections.abc import Callable, Sequence

from torch import Tensor

from hotdraft.gpu_check.checks.decoding import EagerGraphs
from hotdraft.serving.graphs.graphs import Captured


class RecordedGraphs(EagerGraphs):
    """Counts, and computes what `spoil` makes of results."""

    def __init__(self, spoil: Callable[[Tensor], Tensor] = lambda result: result) -> None:
        self.captures = self.replays = 0
        self._spoil = spoil

    def capture(self, work: Callable[[], Sequence[Tensor]]) -> Captured:
        self.captures += 1
        results, replay = super().capture(lambda: [self._spoil(result) for result in work()])

        def counted() -> None:
            self.replays += 1
            replay()

        return Captured(results, counted)
