"""A runner whose recurring forwards are graphs: one launch where there were hundreds.

On a GPU a round of few tokens is launches: some twenty operations a layer, each of which takes the host longer than
the device. A graph is recorded when a shape comes for the third time, compared with what it was recorded from, and
used from then on; where it cannot be recorded, or computes something else, that shape is computed as before.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from hotdraft.serving.graphs.graphs import Graphs
from hotdraft.serving.models.linear import ServedLinear
from hotdraft.serving.models.runner import Computation, Runner, Window
from hotdraft.serving.models.slots import KEY_BLOCK
from hotdraft.serving.native.linear import NativeLinear

logger = logging.getLogger(__name__)

MOST_TOKENS = 32
"""Of a row, beyond which a forward computes long enough to hide its launches."""
RECURS = 3
"""Times that a shape comes until it is recorded: prompts have any length, and most of them none twice."""
MOST_GRAPHS = 256
"""Each holds its result, and some memory of CUDA's."""
TOLERANCE = 1e-2
"""Total variation between a graph's output and that of the same operations launched one by one."""


class Shape(NamedTuple):
    """What graphs are told apart by."""

    rows: int
    tokens: int
    keep: int
    key_length: int


class GraphCounts(NamedTuple):
    captured: int = 0
    """Graphs in use."""
    dropped: int = 0
    """Shapes whose graph could not be recorded, or differed."""
    missed: int = 0
    """Forwards of recurring shapes that have none."""


@dataclass(frozen=True)
class _Graph:
    token_ids: Tensor
    positions: Tensor
    logits: Tensor
    replay: Callable[[], object]


class GraphedRunner:
    """Forwards of the first rows by graphs, others as `runner` does them; rows and keys come in powers of two.

    What rows there are beyond those of a round are fed a token at the slots' last position, which no request has.
    """

    stalls = 0

    def __init__(self, runner: Runner, graphs: Graphs, num_slots: int, max_length: int) -> None:
        self._runner = runner
        self._graphs = graphs
        self._num_slots = num_slots
        self._max_length = max_length
        self._came: Counter[Shape] = Counter()
        self._known: dict[Shape, _Graph | None] = {}
        """None where it is computed without one."""
        self._missed = 0

    @property
    def head(self) -> nn.Module:
        return self._runner.head

    @property
    def computation(self) -> Computation:
        return self._runner.computation

    @property
    def linears(self) -> Sequence[ServedLinear | NativeLinear]:
        return self._runner.linears

    @property
    def counts(self) -> GraphCounts:
        captured = sum(graph is not None for graph in self._known.values())
        return GraphCounts(captured, len(self._known) - captured, self._missed)

    def move(self, source: int, destination: int, length: int) -> None:
        self._runner.move(source, destination, length)

    def clear(self, slot: int) -> None:
        self._runner.clear(slot)

    def forward(self, window: Window, token_ids: Tensor, keep: int) -> Tensor:
        rows, tokens = token_ids.shape
        if window.rows.start != 0 or tokens > MOST_TOKENS:
            return self._runner.forward(window, token_ids, keep)
        shape = self._shape(rows, tokens, keep, window.key_length)
        self._came[shape] += 1
        if self._came[shape] < RECURS:
            return self._runner.forward(window, token_ids, keep)
        if shape not in self._known and len(self._known) < MOST_GRAPHS:
            self._known[shape] = self._recorded(shape, window.positions, token_ids)
        graph = self._known.get(shape)
        if graph is None:
            self._missed += 1
            return self._runner.forward(window, token_ids, keep)
        self._feed(graph.token_ids, graph.positions, window.positions, token_ids)
        graph.replay()
        return graph.logits[:rows].clone()  # the next forward of this shape overwrites it

    def _shape(self, rows: int, tokens: int, keep: int, key_length: int) -> Shape:
        blocks = -(-key_length // KEY_BLOCK)
        return Shape(
            rows=min(_power(rows), self._num_slots),
            tokens=tokens,
            keep=keep,
            key_length=min(_power(blocks) * KEY_BLOCK, self._max_length),
        )

    def _feed(self, to_ids: Tensor, to_positions: Tensor, positions: Tensor, token_ids: Tensor) -> None:
        rows = len(token_ids)
        to_ids[:rows] = token_ids
        to_positions[:rows] = positions
        to_ids[rows:] = 0
        to_positions[rows:] = self._max_length - 1

    def _recorded(self, shape: Shape, positions: Tensor, token_ids: Tensor) -> _Graph | None:
        """Once for this forward, which is then computed twice: the keys that it writes are the same."""
        ids = token_ids.new_zeros(shape.rows, shape.tokens)
        at = positions.new_zeros(shape.rows, shape.tokens)
        self._feed(ids, at, positions, token_ids)
        window = Window(slice(0, shape.rows), at, shape.key_length)
        expected = self._runner.forward(window, ids, shape.keep)
        try:
            logits, replay = self._graphs.capture(lambda: self._runner.forward(window, ids, shape.keep))
            replay()
        except RuntimeError as error:
            [says, *_] = str(error).splitlines() or [type(error).__name__]
            logger.warning("%s is computed without a graph, which could not be recorded: %s", shape, says)
            return None
        distance = _distance(logits[: len(token_ids)], expected[: len(token_ids)])
        if not distance <= TOLERANCE:
            logger.warning(
                "%s is computed without a graph, which differs by %.3f from what it is of", shape, distance
            )
            return None
        return _Graph(ids, at, logits, replay)


def _power(count: int) -> int:
    """The least power of two that is no less."""
    return 1 << (count - 1).bit_length()


def _distance(logits: Tensor, expected: Tensor) -> float:
    """The largest total variation between distributions [B, T, N]."""
    return float((logits.float().softmax(-1) - expected.float().softmax(-1)).abs().sum(-1).max() / 2)
