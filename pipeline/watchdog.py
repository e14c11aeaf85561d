"""The watchdog after a swap: is the served acceptance really lower than what the champion had?

It looks a few times while requests come in, not after each: whoever looks often enough finds a fall
by chance. The looks together find one in at most 5 % of swaps to a draft that is no worse.
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.config import WatchdogConfig

CRITICAL = (1.645, 1.875, 1.992, 2.067, 2.122, 2.164, 2.197, 2.225)
"""Standard errors that a fall must exceed at each of 1, 2, … looks, one-sided 5 % over all of them.

Pocock (1977); table 2.1 of Jennison and Turnbull (2000), two-sided 10 %.
"""
LOOK_FACTOR = 1.5
"""Requests at a look over those at the one before."""


@dataclass(frozen=True)
class Fall:
    """A real fall of the served acceptance rate, over the domains served before and after."""

    before: float
    after: float
    error: float
    """Standard error of the difference."""
    requests: int

    def __str__(self) -> str:
        return (
            f"served acceptance fell from {self.before:.3f} to {self.after:.3f} "
            f"(± {self.error:.3f}) over {self.requests} requests"
        )


class AcceptanceWatch:
    """Compares acceptance rates by request before and after a swap, on the mix of domains seen after.

    Requests are the sample, not tokens: tokens of one request fall and rise together. The rate is that of
    accepted among examined tokens, as the share of all drafted ones falls whenever k rises.
    """

    def __init__(self, config: WatchdogConfig) -> None:
        self._config = config
        self._looks = looks(config.min_requests, config.max_requests)
        self._current: dict[str, deque[float]] = defaultdict(self._empty)
        self._champion: dict[str, list[float]] = {}
        self._looked = 0
        """Looks since the swap."""
        self._fall: Fall | None = None

    def swapped(self) -> None:
        """From here on requests are served by a new version; the one before is what it must hold up to.

        Domains that the version before hardly served keep the figures of an earlier one.
        """
        self._champion |= {domain: list(rates) for domain, rates in self._current.items() if len(rates) > 1}
        self._current.clear()
        self._looked = 0
        self._fall = None

    def served(self, domain: str, accepted: int, examined: int) -> None:
        """Take in a finished request.

        Examined are the drafted tokens up to and including the first rejected of each round; a request
        that nothing was drafted for tells nothing.
        """
        if not examined:
            return
        self._current[domain].append(accepted / examined)
        if self._looked < len(self._looks) and self._comparable >= self._looks[self._looked]:
            self._looked += 1
            self._fall = self._fall or self._look()

    def fall(self) -> Fall | None:
        """The fall beyond `max_fall` and chance that a look has found.

        After the last look, `max_requests` have shown the version to be good: traffic that grows harder
        later is not its fault.
        """
        return self._fall

    @property
    def _shared(self) -> list[str]:
        """Domains that both versions served."""
        return [d for d, rates in self._current.items() if d in self._champion and len(rates) > 1]

    @property
    def _comparable(self) -> int:
        """Requests on the new version, of shared domains."""
        return sum(len(self._current[domain]) for domain in self._shared)

    def _look(self) -> Fall | None:
        requests = self._comparable
        before = after = variance = 0.0
        for domain in self._shared:
            weight = len(self._current[domain]) / requests
            old_mean, old_error = _mean(self._champion[domain])
            new_mean, new_error = _mean(self._current[domain])
            before += weight * old_mean
            after += weight * new_mean
            variance += weight**2 * (old_error**2 + new_error**2)
        error = math.sqrt(variance)
        fell = before - after - CRITICAL[len(self._looks) - 1] * error > self._config.max_fall
        return Fall(before, after, error, requests) if fell else None

    def _empty(self) -> deque[float]:
        return deque(maxlen=self._config.max_requests)


def looks(first: int, last: int) -> list[int]:
    """Numbers of requests at which to look: `first`, each half as many again, and `last`; at most 8."""
    factor = max(LOOK_FACTOR, (last / first) ** (1 / (len(CRITICAL) - 1)))
    found = [first]
    while found[-1] * factor < last:
        found.append(math.ceil(found[-1] * factor))
    return found if found[-1] == last else [*found, last]


def _mean(rates: Iterable[float]) -> tuple[float, float]:
    """Mean and its standard error."""
    values = list(rates)
    mean = sum(values) / len(values)
    spread = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(spread / len(values))
