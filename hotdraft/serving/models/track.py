"""One model over the slots: how far it has read each, and which of its keys another request may be given."""

import numpy as np
import torch
from torch import Tensor

from hotdraft.pipeline.replay.draft_window import first_read, lengths_read, most_held
from hotdraft.pipeline.system.transfer import sent
from hotdraft.serving.models.hidden_states.target_states import TargetStates
from hotdraft.serving.models.runner import Runner, Window
from hotdraft.serving.models.slots import Slots

MIN_SHARED = 16
"""Tokens of a common beginning from which on it is copied instead of read again."""


class Track:
    """Keys that other weights made cost the request that goes on with them acceptance; they are not handed on.

    The last `lag` tokens of a slot are read in its rounds, those before them ahead of its first. With a
    `window` a prompt is read from where `first_read` says, and a slot from its last `window` tokens on, each time
    what is held of it becomes longer than `most_held`: as many tokens follow, at least, as are read again.
    """

    def __init__(
        self,
        runner: Runner,
        slots: Slots,
        lag: int,
        window: int | None = None,
        states: TargetStates | None = None,
    ) -> None:
        """`states` are what the runner leaves beside its keys."""
        self.runner = runner
        self.states = states
        self._kept: list[Runner | TargetStates] = [runner] if states is None else [runner, states]
        self.lengths = [0] * slots.num_slots
        """Tokens of each slot up to which the runner holds keys."""
        self.firsts = [0] * slots.num_slots
        """The first of them, which is at the runner's position 0."""
        self._slots = slots
        self._lag = lag
        self._window = window
        self._weights = 0
        """How often the weights have changed: a version that comes back counts anew, keys may be of both."""
        self._made_by: list[int | None] = [0] * slots.num_slots
        """The weights that made a slot's first key, on which all others build; None: it holds no such keys."""

    def weights_changed(self) -> None:
        """The weights are others from now on."""
        self._weights += 1

    def load(self, row: int, same: np.ndarray) -> None:
        """Begin a row anew, with what some slot has read already of its first `same` tokens [num_slots]."""
        length, firsts = self._slots.lengths[row], np.array(self.firsts)
        shared, held = np.minimum(self.reusable(same), length - self._lag) - firsts, length - firsts
        if self._window is not None:
            shared[(lengths_read(held, self._window) < held) | (held < min(length, self._window))] = 0
        source = int(shared.argmax())
        count, first = int(shared[source]), self.firsts[source]
        if count < MIN_SHARED:
            count, first = 0, first_read(length, self._window)
        elif source != row:
            self._copy(source, row, count)
        self.begin(row, first, count)

    def reusable(self, same: np.ndarray) -> np.ndarray:
        """Up to where [num_slots] each slot holds what the present weights make of its first `same` tokens."""
        current = np.array([made_by == self._weights for made_by in self._made_by])
        return np.where(current, np.minimum(same, self.lengths), 0)

    def begin(self, slot: int, first: int, count: int = 0) -> None:
        """A slot holds `count` tokens from its `first` on, all of the present weights' making."""
        self.firsts[slot], self.lengths[slot], self._made_by[slot] = first, first + count, self._weights

    def _first_read(self, row: int) -> int:
        """The first token that it reads of a row from now on: that of before, as long as it may."""
        first, length = self.firsts[row], self._slots.lengths[row]
        if self._window is None or most_held(length - first, self._window) == length - first:
            return first
        return length - self._window

    def keep_in_window(self, row: int) -> None:
        """Begin a row anew that has become too long."""
        if (first := self._first_read(row)) != self.firsts[row]:
            self.begin(row, first)

    def unread(self, row: int) -> int:
        """Tokens of a row that it has yet to read before the row's next round."""
        first = self._first_read(row)
        read = first if first != self.firsts[row] else self.lengths[row]
        return max(0, self._slots.lengths[row] - self._lag - read)

    def read(self, row: int, budget: int, *, keep_all: bool = False) -> Tensor | None:
        """Read up to `budget` of a row's unread tokens, if any: logits [1, T, N] of the last, or of all."""
        count = min(self.unread(row), budget)
        if count <= 0:
            return None
        self.keep_in_window(row)
        start, end, first = self.lengths[row], self.lengths[row] + count, self.firsts[row]
        positions = torch.arange(start - first, end - first, device=self._slots.device)[None]
        window = Window(slice(row, row + 1), positions, self._slots.key_length(end - first))
        token_ids = self._slots.tokens[row : row + 1, start:end]
        logits = self.runner.forward(window, token_ids, count if keep_all else 1)
        self.lengths[row] = end
        return logits

    def read_together(self, rows: slice) -> None:
        """Read what is left of rows that follow one another in one forward, which is fed a shorter rest's first
        token again and again."""
        each = range(rows.start, rows.stop)
        for row in each:
            self.keep_in_window(row)
        unread = [self.unread(row) for row in each]
        if not any(unread):
            return
        ends = [self.lengths[row] + count for row, count in zip(each, unread, strict=True)]
        starts = sent(self.lengths[rows], torch.int64, self._slots.device)[:, None]
        columns = torch.arange(-max(unread), 0, device=self._slots.device)
        places = torch.maximum(sent(ends, torch.int64, self._slots.device)[:, None] + columns, starts)
        token_ids = self._slots.tokens[rows].gather(1, places)
        longest = max(end - self.firsts[row] for row, end in zip(each, ends, strict=True))
        window = Window(rows, places - self._device_firsts(rows), self._slots.key_length(longest + 1))
        self.runner.forward(window, token_ids, 1)
        self.lengths[rows] = ends

    def _device_firsts(self, rows: slice) -> Tensor | int:
        """`firsts` [B, 1] of these rows; without a window all are 0, and nothing is sent."""
        return 0 if self._window is None else sent(self.firsts[rows], torch.int64, self._slots.device)[:, None]

    def rewind(self, row: int, length: int) -> None:
        """A row's tokens from `length` on were forgotten."""
        self.lengths[row] = min(self.lengths[row], length - 1)
        if self.lengths[row] < self.firsts[row]:
            self.begin(row, first_read(length, self._window))

    def move(self, source: int, destination: int) -> None:
        """Copy a slot over another."""
        self._copy(source, destination, self.lengths[source] - self.firsts[source])
        self.firsts[destination], self.lengths[destination] = self.firsts[source], self.lengths[source]
        self._made_by[destination] = self._made_by[source]

    def move_keys(self, sources: Tensor, destinations: Tensor) -> None:
        """In each of the first B slots, copy what is at one of sources int64 [B] over destinations [B]."""
        for kept in self._kept:
            kept.move_keys(sources, destinations)

    def discard(self, slot: int) -> None:
        """Zero a slot's keys, which may not be numbers. Those of a request that goes on there build on that."""
        for kept in self._kept:
            kept.clear(slot)
        self._made_by[slot] = None

    def _copy(self, source: int, destination: int, length: int) -> None:
        for kept in self._kept:
            kept.move(source, destination, length)
