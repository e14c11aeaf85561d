"""The acceptance rate of the newest requests, kept as sums: it is asked for at each request."""

from collections import deque

Counted = tuple[int, int]
"""Accepted and examined tokens of a request."""


class RecentRate:
    """Of at most `most` requests."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._requests: deque[Counted] = deque()
        self._accepted = self._examined = 0

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def rate(self) -> float:
        """Accepted over examined tokens; 0 where none were examined."""
        return self._accepted / max(1, self._examined)

    def push(self, counted: Counted) -> Counted | None:
        """Count a request; gives the oldest, if that had to make room."""
        oldest = self._requests.popleft() if len(self) == self._most else None
        self._requests.append(counted)
        self._accepted += counted[0] - (oldest[0] if oldest else 0)
        self._examined += counted[1] - (oldest[1] if oldest else 0)
        return oldest

    def clear(self) -> None:
        self._requests.clear()
        self._accepted = self._examined = 0
