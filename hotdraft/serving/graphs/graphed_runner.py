"""A runner whose recurring forwards are graphs: one launch where there were hundreds.

On a GPU a round of few tokens is launches: some twenty operations a layer, each of which takes the host longer than
the device. A graph is recorded when a shape comes for the third time, compared with what it was recorded from, and
used from then on; where it cannot be recorded, or computes something else, that shape is computed as before.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from hotdraft.serving.graphs.graphs import Graphs
from hotdraft.serving.graphs.recurring import GraphCounts, Recurring
from hotdraft.serving.models.linear import ServedLinear
from hotdraft.serving.models.runner import Computation, Runner, Window
from hotdraft.serving.models.slots import KEY_BLOCK
from hotdraft.serving.native.linear import NativeLinear

MOST_TOKENS = 32
"""Of a row, beyond which a forward computes long enough to hide its launches."""


class Shape(NamedTuple):
    """What graphs are told apart by."""

    rows: int
    tokens: int
    keep: int
    key_length: int


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
        self._graphs: Recurring[Shape, _Graph] = Recurring(graphs)
        self._num_slots = num_slots
        self._max_length = max_length

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
        return self._graphs.counts

    def move(self, source: int, destination: int, length: int) -> None:
        self._runner.move(source, destination, length)

    def move_keys(self, sources: Tensor, destinations: Tensor) -> None:
        self._runner.move_keys(sources, destinations)

    def clear(self, slot: int) -> None:
        self._runner.clear(slot)

    def forward(self, window: Window, token_ids: Tensor, keep: int) -> Tensor:
        rows, tokens = token_ids.shape
        if window.rows.start != 0 or tokens > MOST_TOKENS or window.keys is not None:
            return self._runner.forward(window, token_ids, keep)
        shape = self._shape(rows, tokens, keep, window.key_length)
        graph = self._graphs.find(shape, lambda: self._recorded(shape, window.positions, token_ids))
        if graph is None:
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
        if rows < len(to_ids):
            to_ids[rows:] = 0
            to_positions[rows:] = self._max_length - 1

    def _recorded(self, shape: Shape, positions: Tensor, token_ids: Tensor) -> _Graph | None:
        """Once for this forward, which is then computed twice: the keys that it writes are the same."""
        ids = token_ids.new_zeros(shape.rows, shape.tokens)
        at = positions.new_zeros(shape.rows, shape.tokens)
        self._feed(ids, at, positions, token_ids)
        window = Window(slice(0, shape.rows), at, shape.key_length)
        expected = self._runner.forward(window, ids, shape.keep)
        captured = self._graphs.record(
            shape,
            lambda: [self._runner.forward(window, ids, shape.keep)],
            [ids, at],
            lambda results: _distance(results[0][: len(token_ids)], expected[: len(token_ids)]),
        )
        return None if captured is None else _Graph(ids, at, captured.results[0], captured.replay)


def _power(count: int) -> int:
    """The least power of two that is no less."""
    return 1 << (count - 1).bit_length()


def _distance(logits: Tensor, expected: Tensor) -> float:
    """The largest total variation between distributions [B, T, N]."""
    return float((logits.float().softmax(-1) - expected.float().softmax(-1)).abs().sum(-1).max() / 2)
