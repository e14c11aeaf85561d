"""Graphs of what recurs: each is recorded once, compared with what it is of, and used from then on."""

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from torch import Tensor

from hotdraft.serving.graphs.graphs import Captured, Graphs

logger = logging.getLogger(__name__)

RECURS = 3
"""Times that a kind of call comes until it is recorded: prompts have any length, and most of them none twice."""
MOST_GRAPHS = 1024
"""Each holds some memory of CUDA's."""
TOLERANCE = 1e-2
"""Of the distance between what a graph computes and what the same operations do, launched one by one."""

Kind = TypeVar("Kind", bound=Hashable)
Graph = TypeVar("Graph")


class GraphCounts(NamedTuple):
    captured: int = 0
    """Graphs in use."""
    dropped: int = 0
    """Kinds of calls whose graph could not be recorded, differed, or would have taken too much memory."""
    missed: int = 0
    """Calls of recurring kinds that have none, and of any new kind once there are too many."""


class Graphed(Protocol):
    """What has graphs."""

    @property
    def counts(self) -> GraphCounts: ...


class Recurring(Generic[Kind, Graph]):
    """Of one function, by what its calls are told apart by."""

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs
        self._came: Counter[Kind] = Counter()
        self._known: dict[Kind, Graph | None] = {}
        """None where it is computed without one."""
        self._missed = 0

    @property
    def counts(self) -> GraphCounts:
        captured = sum(graph is not None for graph in self._known.values())
        return GraphCounts(captured, len(self._known) - captured, self._missed)

    def find(self, kind: Kind, make: Callable[[], Graph | None], recurs: int = RECURS) -> Graph | None:
        """Its graph, which `make` records once it `recurs`; None where a call is to be computed without."""
        if kind not in self._known and len(self._known) < MOST_GRAPHS:
            self._came[kind] += 1
            if self._came[kind] < recurs:
                return None
            self._known[kind] = make()
        graph = self._known.get(kind)
        self._missed += graph is None
        return graph

    def record(
        self,
        kind: Kind,
        work: Callable[[], Sequence[Tensor]],
        inputs: Sequence[Tensor],
        distance: Callable[[Sequence[Tensor]], float],
    ) -> Captured | None:
        """`work` as a graph; None, and a warning, where it cannot be one or is too far from what it is of.

        Results are wiped before it is played, but for those that are `inputs`: it has to have computed them.
        """
        read = {tensor.untyped_storage().data_ptr() for tensor in inputs}
        try:
            captured = self._graphs.capture(work)
            for result in captured.results:
                if result.untyped_storage().data_ptr() not in read:
                    result.zero_()
            captured.replay()
        except RuntimeError as error:
            [says, *_] = str(error).splitlines() or [type(error).__name__]
            logger.warning("%s is computed without a graph, which could not be recorded: %s", kind, says)
            return None
        far = distance(captured.results)
        if not far <= TOLERANCE:
            logger.warning("%s is computed without a graph, which differs by %.3f from what it is of", kind, far)
            return None
        return captured
