"""Names of the domains that curves and counters are kept by. Clients choose them, so their number is bounded."""

import re
import threading
import time
from collections import Counter
from collections.abc import Callable

MAX_DOMAINS = 32
"""At a time."""
MAX_NAMES = 256
"""Beside those that were long unseen: each is a curve and two counters for as long as it is known."""
FORGOTTEN_SECONDS = 6 * 3600.0
"""After which a name that nobody asked for makes place for another."""
NEWEST = 1024
"""Requests after which what was counted is halved."""
MORE = 3
"""Requests by which a domain has to exceed the one whose place it takes."""
OTHER = "other"


class DomainNames:
    """The `MAX_DOMAINS` domains of most of the newest requests have names of their own; all others are `other`.

    A new one has it at once while there is room, and else takes the place of the one with fewest requests, by
    having had more: tags that come once each crowd nobody out. May be asked by several threads.
    """

    def __init__(self, forget: Callable[[str], object] = lambda name: None) -> None:
        """`forget` is told each name that has made place: what is kept by it may go."""
        self._forget = forget
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._heard = 0
        self._named: set[str] = set()
        self._known: dict[str, float] = {}
        """When each name was last given, on the monotonic clock; the one longest ago first."""

    def name(self, domain: str) -> str:
        name = name_part(domain)
        with self._lock:
            self._count(name)
            if name not in self._named and not self._makes_room_for(name):
                return OTHER
            self._named.add(name)
            self._known.pop(name, None)
            self._known[name] = time.monotonic()
            return name

    def _count(self, name: str) -> None:
        self._counts[name] += 1
        self._heard += 1
        if self._heard % NEWEST == 0:
            self._counts = Counter({name: count // 2 for name, count in self._counts.items() if count > 1})

    def _makes_room_for(self, name: str) -> bool:
        if len(self._known) >= MAX_NAMES and name not in self._known and not self._forgets_one():
            return False
        if len(self._named) < MAX_DOMAINS:
            return True
        least = min(self._named, key=self._counts.__getitem__)
        if self._counts[name] < self._counts[least] + MORE:
            return False
        self._named.remove(least)
        return True

    def _forgets_one(self) -> bool:
        oldest, given = next(iter(self._known.items()))
        if time.monotonic() - given < FORGOTTEN_SECONDS:
            return False
        del self._known[oldest]
        self._named.discard(oldest)
        self._forget(oldest)
        return True


def name_part(text: str) -> str:
    """Any text, a client's domain for one, as a part of a metric or tag name that MLflow accepts.

    Letters and digits of any script stay, as `_` and `-` do; all else becomes `_`.
    """
    return re.sub(r"[^\w-]", "_", text)[:100] or "default"
