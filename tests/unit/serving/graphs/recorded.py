"""A stand-in for CUDA's graphs."""

from collections.abc import Callable, Sequence

from torch import Tensor

from hotdraft.serving.graphs.graphs import Captured


class RecordedGraphs:
    """As CUDA's: a replay computes from and into the same memory, and returns nothing."""

    def __init__(self, spoil: Callable[[Tensor], Tensor] = lambda result: result) -> None:
        self.captures = self.replays = 0
        self._spoil = spoil

    def capture(self, work: Callable[[], Sequence[Tensor]]) -> Captured:
        self.captures += 1
        results = [self._spoil(result.clone()) for result in work()]

        def replay() -> None:
            self.replays += 1
            for result, anew in zip(results, work(), strict=True):
                result.copy_(self._spoil(anew))

        return Captured(results, replay)
