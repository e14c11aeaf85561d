"""What stays in memory of what can be had again: what was asked for last, as much as has room."""

from collections import OrderedDict
from collections.abc import ItemsView
from typing import Generic, Protocol, TypeVar


class Measured(Protocol):
    @property
    def nbytes(self) -> int: ...


Key = TypeVar("Key")
Value = TypeVar("Value", bound=Measured)


class ByteCache(Generic[Key, Value]):
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[Key, Value] = OrderedDict()
        """What was asked for last at the end."""
        self._bytes = 0

    def get(self, key: Key) -> Value | None:
        value = self._kept.get(key)
        if value is not None:
            self._kept.move_to_end(key)
        return value

    def keep(self, key: Key, value: Value) -> None:
        """In place of what was asked for longest ago, where there is no room."""
        self.drop(key)
        self._kept[key] = value
        self._bytes += value.nbytes
        while self._bytes > self._max_bytes:
            self._bytes -= self._kept.popitem(last=False)[1].nbytes

    def drop(self, key: Key) -> None:
        """Nothing happens if it is not kept."""
        if key in self._kept:
            self._bytes -= self._kept.pop(key).nbytes

    def items(self) -> ItemsView[Key, Value]:
        """What was asked for longest ago first."""
        return self._kept.items()

    def clear(self) -> None:
        self._kept.clear()
        self._bytes = 0
