"""Recent answers, findable by how they go on after two tokens: chains of hashed pairs over a ring, as in LZ77."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T", int, np.ndarray)

END = -1
"""Stands behind each text."""
BYTES_A_TOKEN = 16
"""4 for the token, 8 for where its pair came before, 4 for a share of the table of pairs."""
MULTIPLIERS = (0x9E3779B1, 0x85EBCA6B)
"""Odd ones that spread small numbers (Knuth, The Art of Computer Programming, volume 3, section 6.4)."""


class RecentText:
    """The newest `capacity` tokens; what is older is overwritten. Memory is taken as it fills."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        """Tokens ever appended."""
        self._tokens = np.zeros(capacity, np.int32)
        self._previous = np.zeros(capacity, np.int64)
        """Where the pair that ends at a token was before, counted from 1; 0: nowhere."""
        self._latest = np.zeros(max(1, capacity >> 1), np.int64)
        """Likewise where a pair was last, by its hash."""

    @property
    def num_bytes(self) -> int:
        return self._tokens.nbytes + self._previous.nbytes + self._latest.nbytes

    def append(self, token_ids: Sequence[int] | np.ndarray) -> None:
        """Add a text, or several with an `END` between them; of what is longer than the capacity the end."""
        text = np.append(np.asarray(token_ids, np.int32)[1 - self.capacity :], END)
        positions = self.length + np.arange(len(text))
        places = positions % self.capacity
        self._tokens[places] = text
        self._previous[places] = 0
        wide, seconds = text.astype(np.uint64), 1 + np.flatnonzero(text[:-1] != END)
        ends = positions[seconds]
        pairs = _hash(wide[seconds - 1], wide[seconds], len(self._latest)).astype(np.int64)
        order = np.argsort(pairs, kind="stable")
        again = np.flatnonzero(pairs[order][1:] == pairs[order][:-1])
        before = self._latest[pairs]
        before[order[again + 1]] = ends[order[again]] + 1
        self._previous[places[seconds]] = before
        self._latest[pairs] = ends + 1
        self.length += len(text)

    def newest(self, count: int) -> np.ndarray:
        """The newest `count` tokens with the `END` of each text, at most all that there are."""
        count = min(count, self.length, self.capacity)
        return self._tokens[np.arange(self.length - count, self.length) % self.capacity]

    def found(self, first: int, second: int, most: int, margin: int) -> np.ndarray:
        """Where the pair ends, the newest first, up to `most` places that still have `margin` tokens before them.

        What merely has the hash of the pair is found as well.
        """
        return np.fromiter(self._chain(first, second, most, margin), np.int64)

    def at(self, positions: np.ndarray) -> np.ndarray:
        """The tokens there."""
        return self._tokens[positions % self.capacity]

    def _chain(self, first: int, second: int, most: int, margin: int) -> Iterator[int]:
        oldest = max(0, self.length - self.capacity + margin)
        position = int(self._latest[_hash(first, second, len(self._latest))]) - 1
        for _ in range(most):
            if position < oldest:
                return
            yield position
            position = int(self._previous[position % self.capacity]) - 1


def _hash(first: T, second: T, size: int) -> T:
    """Of a pair of tokens, or of many."""
    mixed = first * MULTIPLIERS[0] ^ second * MULTIPLIERS[1]
    return (mixed ^ mixed >> 15) % size
