"""Who waits for a row: clients take turns, so that none waits behind all that another asks."""

from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import chain

from hotdraft.serving.engine.sequence import Sequence


class QueueFullError(RuntimeError):
    """As many requests wait as `max_queue` allows; try again later."""


class Waiting:
    """At most `most`, and as many again of clients that have less than an even share of `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_client: OrderedDict[str, deque[Sequence]] = OrderedDict()
        """Of those who have any; whose turn it is comes first."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        return chain.from_iterable(self._by_client.values())

    def has_room_for(self, client: str, count: int = 1) -> bool:
        """Whether all of `count` more would be taken."""
        before_last = self._count + count - 1
        if before_last < self._most:
            return True
        own = len(self._by_client.get(client, ()))
        clients = len(self._by_client) + (not own)
        return (own + count - 1) * clients < self._most and before_last < 2 * self._most

    def check_room(self, client: str, count: int = 1) -> None:
        """Raises `QueueFullError` where there is none."""
        if not self.has_room_for(client, count):
            raise QueueFullError(f"{self._count} requests are waiting already")

    def add(self, sequence: Sequence) -> None:
        self._by_client.setdefault(sequence.request.client, deque()).append(sequence)
        self._count += 1

    def take(self) -> Sequence:
        """The next one; all others who wait have their turn before its client's next."""
        sequence = next(iter(self))
        self._remove(sequence)
        if sequence.request.client in self._by_client:
            self._by_client.move_to_end(sequence.request.client)
        return sequence

    def put_back(self, sequence: Sequence) -> None:
        """It is the next one again."""
        self._by_client.setdefault(sequence.request.client, deque()).appendleft(sequence)
        self._by_client.move_to_end(sequence.request.client, last=False)
        self._count += 1

    def drop(self, request_ids: set[str]) -> list[Sequence]:
        if not request_ids:
            return []
        dropped = [sequence for sequence in self if sequence.request.request_id in request_ids]
        for sequence in dropped:
            self._remove(sequence)
        return dropped

    def _remove(self, sequence: Sequence) -> None:
        own = self._by_client[sequence.request.client]
        own.remove(sequence)
        self._count -= 1
        if not own:
            del self._by_client[sequence.request.client]
