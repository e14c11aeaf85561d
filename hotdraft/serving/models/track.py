"""One model over the slots: how far it has read each, and which of its keys another request may be given."""

import numpy as np
import torch
from torch import Tensor

from hotdraft.pipeline.system.transfer import sent
from hotdraft.serving.models.runner import Runner, Window
from hotdraft.serving.models.slots import Slots

MIN_SHARED = 16
"""Tokens of a common beginning from which on it is copied instead of read again."""


class Track:
    """Keys that other weights made cost the request that goes on with them acceptance; they are not handed on.

    The last `lag` tokens of a slot are read in its rounds, those before them ahead of its first.
    """

    def __init__(self, runner: Runner, slots: Slots, lag: int) -> None:
        self.runner = runner
        self.lengths = [0] * slots.num_slots
        """Positions of each slot that the runner holds keys for."""
        self._slots = slots
        self._lag = lag
        self._weights = 0
        """How often the weights have changed: a version that comes back counts anew, keys may be of both."""
        self._made_by: list[int | None] = [0] * slots.num_slots
        """The weights that made a slot's first key, on which all others build; None: it holds no such keys."""

    def weights_changed(self) -> None:
        """The weights are others from now on."""
        self._weights += 1

    def load(self, row: int, same: np.ndarray) -> None:
        """Begin a row anew, with what some slot has read already of its first `same` tokens [num_slots]."""
        shared = np.minimum(self.reusable(same), self._slots.lengths[row] - self._lag)
        source = int(shared.argmax())
        length = int(shared[source])
        if length < MIN_SHARED:
            length = 0
        elif source != row:
            self.runner.move(source, row, length)
        self.begin(row, length)

    def reusable(self, same: np.ndarray) -> np.ndarray:
        """Positions [num_slots] of each slot that hold what the present weights make of its first `same` tokens."""
        current = np.array([made_by == self._weights for made_by in self._made_by])
        return np.where(current, np.minimum(same, self.lengths), 0)

    def begin(self, slot: int, length: int) -> None:
        """A slot holds `length` positions, all of the present weights' making."""
        self.lengths[slot], self._made_by[slot] = length, self._weights

    def unread(self, row: int) -> int:
        """Tokens of a row that it has yet to read before the row's next round."""
        return max(0, self._slots.lengths[row] - self._lag - self.lengths[row])

    def read(self, row: int, budget: int, *, keep_all: bool = False) -> Tensor | None:
        """Read up to `budget` of a row's unread tokens, if any: logits [1, T, N] of the last, or of all."""
        count = min(self.unread(row), budget)
        if count <= 0:
            return None
        start, end = self.lengths[row], self.lengths[row] + count
        positions = torch.arange(start, end, device=self._slots.device)[None]
        window = Window(slice(row, row + 1), positions, self._slots.key_length(end))
        token_ids = self._slots.tokens[row : row + 1, start:end]
        logits = self.runner.forward(window, token_ids, count if keep_all else 1)
        self.lengths[row] = end
        return logits

    def read_together(self, rows: slice) -> None:
        """Read what is left of rows that follow one another in one forward, which is fed a shorter rest's first
        token again and again."""
        unread = [self.unread(row) for row in range(rows.start, rows.stop)]
        if not any(unread):
            return
        ends = [self.lengths[row] + count for row, count in zip(range(rows.start, rows.stop), unread, strict=True)]
        starts = sent(self.lengths[rows], torch.int64, self._slots.device)[:, None]
        columns = torch.arange(-max(unread), 0, device=self._slots.device)
        positions = torch.maximum(sent(ends, torch.int64, self._slots.device)[:, None] + columns, starts)
        token_ids = self._slots.tokens[rows].gather(1, positions)
        self.runner.forward(Window(rows, positions, self._slots.key_length(max(ends) + 1)), token_ids, 1)
        self.lengths[rows] = ends

    def rewind(self, row: int, length: int) -> None:
        """A row's tokens from `length` on were forgotten."""
        self.lengths[row] = min(self.lengths[row], length - 1)

    def move(self, source: int, destination: int) -> None:
        """Copy a slot over another."""
        self.runner.move(source, destination, self._slots.lengths[source])
        self.lengths[destination], self._made_by[destination] = self.lengths[source], self._made_by[source]

    def discard(self, slot: int) -> None:
        """Zero a slot's keys, which may not be numbers. Those of a request that goes on there build on that."""
        self.runner.clear(slot)
        self._made_by[slot] = None
