"""A runner whose recurring forwards are graphs: one launch where there were hundreds.

On a GPU a round of few tokens is launches: some twenty operations a layer, each of which takes the host longer than
the device. A graph is recorded when a shape comes for the third time, compared with what it was recorded from, and
used from then on; where it cannot be recorded, or computes something else, that shape is computed as before.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hotdraft.serving.graphs.graphs import Graphs
from hotdraft.serving.graphs.padding import EXACT_TOKENS, MOST_TOKENS, Padding
from hotdraft.serving.graphs.recurring import RECURS, GraphCounts, Recurring
from hotdraft.serving.models.fused_runner import FusedRunner
from hotdraft.serving.models.hidden_states.target_states import TargetStates
from hotdraft.serving.models.linear import ServedLinear
from hotdraft.serving.models.runner import Computation, Runner, Window
from hotdraft.serving.native.linear import NativeLinear

MOST_KEPT = 1024
"""Tokens of all rows that logits are computed of, beyond which these take too much memory, and long enough."""


class Shape(NamedTuple):
    """What graphs are told apart by."""

    rows: int
    tokens: int
    keep: int
    key_length: int
    anywhere: bool
    """Whether rows may be any slots, and not just the first."""


@dataclass
class _Graph:
    token_ids: Tensor
    """int64 [R, T]: what it reads, and where."""
    window: Window
    logits: Tensor = field(init=False)
    replay: Callable[[], object] = field(init=False)

    def feed(self, window: Window, token_ids: Tensor, last: int) -> None:
        """What it is to read, with what fills it up; `last` is a position that no request has."""
        rows, tokens = token_ids.shape
        for padded, part in ((self.token_ids, token_ids), (self.window.positions, window.positions)):
            padded[:rows, -tokens:] = part
            if tokens < padded.shape[1]:
                padded[:rows, :-tokens] = part[:, :1]
        if rows < len(self.token_ids):
            self.token_ids[rows:] = 0
            self.window.positions[rows:] = last
        if self.window.slots is not None:
            torch.arange(window.rows.start, window.rows.stop, out=self.window.slots[:rows])


class GraphedRunner:
    """Forwards by graphs, of shapes as `padding` makes them; what is too large for one `runner` does as it is."""

    stalls = 0

    def __init__(self, runner: Runner, graphs: Graphs, padding: Padding) -> None:
        self._runner = runner
        self._graphs: Recurring[Shape, _Graph] = Recurring(graphs)
        self._padding = padding
        self._logits: Tensor | None = None
        """[MOST_KEPT, N]: where all graphs leave theirs."""

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

    def record_states(self, states: TargetStates) -> None:
        self._runner.record_states(states)

    def move(self, source: int, destination: int, length: int) -> None:
        self._runner.move(source, destination, length)

    def move_keys(self, sources: Tensor, destinations: Tensor) -> None:
        self._runner.move_keys(sources, destinations)

    def clear(self, slot: int) -> None:
        self._runner.clear(slot)

    def forward(self, window: Window, token_ids: Tensor, keep: int) -> Tensor:
        graph = self._find(window, token_ids, keep)
        if graph is None:
            return self._runner.forward(window, token_ids, keep)
        graph.feed(window, token_ids, self._padding.last)
        graph.replay()
        return graph.logits[: len(token_ids), -keep:].clone()  # the next forward overwrites it

    def record(self, window: Window, token_ids: Tensor, keep: int) -> None:
        """Ahead of the first forward of such a shape, whose slots nobody may use yet."""
        self._find(window, token_ids, keep, recurs=1)

    def _find(self, window: Window, token_ids: Tensor, keep: int, recurs: int = RECURS) -> _Graph | None:
        shape = self._shape(window, token_ids, keep)
        if shape is None:
            return None
        return self._graphs.find(shape, lambda: self._recorded(shape, window, token_ids), recurs)

    def _shape(self, window: Window, token_ids: Tensor, keep: int) -> Shape | None:
        """None where there is no graph for it."""
        padding, (rows, tokens) = self._padding, token_ids.shape
        anywhere = window.rows.start != 0 or (keep < tokens and tokens > EXACT_TOKENS)
        kept = padding.tokens(keep)
        if (
            window.guesses
            or tokens > MOST_TOKENS
            or padding.rows(rows) * kept > MOST_KEPT
            or window.keys is not None
        ):
            return None
        if window.rows.stop > padding.num_slots:  # a probe's, which comes between rounds: it is not to record
            return None
        if anywhere and not isinstance(self._runner, FusedRunner):
            return None
        return Shape(
            padding.rows(rows), padding.tokens(tokens), kept, padding.key_length(window.key_length), anywhere
        )

    def _recorded(self, shape: Shape, window: Window, token_ids: Tensor) -> _Graph | None:
        """Once for this forward, which is then computed twice: the keys that it writes are the same."""
        ids = token_ids.new_zeros(shape.rows, shape.tokens)
        slots = ids.new_zeros(shape.rows) if shape.anywhere else None
        padded = Window(slice(0, shape.rows), torch.zeros_like(ids), shape.key_length, slots=slots)
        graph = _Graph(ids, padded)
        graph.feed(window, token_ids, self._padding.last)
        expected = self._runner.forward(padded, ids, shape.keep)
        if self._logits is None:
            self._logits = expected.new_empty(MOST_KEPT, expected.shape[-1])
        logits = self._logits[: shape.rows * shape.keep].view_as(expected)
        captured = self._graphs.record(
            shape,
            lambda: [logits.copy_(self._runner.forward(padded, ids, shape.keep))],
            [ids, padded.positions],
            lambda results: _distance(results[0][: len(token_ids)], expected[: len(token_ids)]),
        )
        if captured is None:
            return None
        [graph.logits], graph.replay = captured
        return graph


def _distance(logits: Tensor, expected: Tensor) -> float:
    """The largest total variation between distributions [B, T, N]."""
    return float((logits.float().softmax(-1) - expected.float().softmax(-1)).abs().sum(-1).max() / 2)
