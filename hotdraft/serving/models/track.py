"""One model over the slots: how far it has read each, and which of its keys another request may be given."""

import numpy as np

from hotdraft.serving.models.runner import Runner
from hotdraft.serving.models.trimmed_head import TrimmedHead


class Track:
    """Keys that other weights made cost the request that goes on with them acceptance; they are not handed on."""

    def __init__(self, runner: Runner, num_slots: int) -> None:
        self.runner = runner
        self.lengths = [0] * num_slots
        """Positions of each slot that the runner holds keys for."""
        self.token_ids = runner.head.token_ids if isinstance(runner.head, TrimmedHead) else None
        """The tokens of the head, if it is not the whole vocabulary."""
        self._weights = 0
        """How often the weights have changed: a version that comes back counts anew, keys may be of both."""
        self._made_by: list[int | None] = [0] * num_slots
        """The weights that made a slot's first key, on which all others build; None: it holds no such keys."""

    def weights_changed(self) -> None:
        """The weights are others from now on."""
        self._weights += 1

    def reusable(self, same: np.ndarray) -> np.ndarray:
        """Positions [num_slots] of each slot that hold what the present weights make of its first `same` tokens."""
        current = np.array([made_by == self._weights for made_by in self._made_by])
        return np.where(current, np.minimum(same, self.lengths), 0)

    def begin(self, slot: int, length: int) -> None:
        """A slot holds `length` positions, all of the present weights' making."""
        self.lengths[slot], self._made_by[slot] = length, self._weights

    def move(self, source: int, destination: int, length: int) -> None:
        """Copy the first `length` positions of a slot over another."""
        self.runner.move(source, destination, length)
        self.lengths[destination], self._made_by[destination] = self.lengths[source], self._made_by[source]

    def spoil(self, slot: int) -> None:
        """Zero a slot's keys, which may not be numbers. Those of a request that goes on there build on that."""
        self.runner.clear(slot)
        self._made_by[slot] = None
