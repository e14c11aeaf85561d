"""The watchdog after a swap: is the served acceptance really lower than what the champion had?"""

import math
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.config import WatchdogConfig

Z = 1.645
"""Standard errors that a fall must exceed: one-sided 95 %."""


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
        self._current: dict[str, deque[float]] = defaultdict(self._empty)
        self._champion: dict[str, list[float]] = {}
        self._served = 0
        """Requests since the swap."""

    def swapped(self) -> None:
        """From here on requests are served by a new version; the one before is what it must hold up to.

        Domains that the version before hardly served keep the figures of an earlier one.
        """
        self._champion |= {domain: list(rates) for domain, rates in self._current.items() if len(rates) > 1}
        self._current.clear()
        self._served = 0

    def served(self, domain: str, accepted: int, examined: int) -> None:
        """Take in a finished request.

        Examined are the drafted tokens up to and including the first rejected of each round; a request
        that nothing was drafted for tells nothing.
        """
        if examined:
            self._served += 1
            self._current[domain].append(accepted / examined)

    def fall(self) -> Fall | None:
        """The fall, if there is one beyond `max_fall` and chance.

        None too while that cannot be told, and once `max_requests` have shown the version to be good:
        traffic that grows harder later is not its fault.
        """
        if self._served > self._config.max_requests:
            return None
        shared = [d for d in self._current if d in self._champion and len(self._current[d]) > 1]
        requests = sum(len(self._current[domain]) for domain in shared)
        if requests < self._config.min_requests:
            return None
        before = after = variance = 0.0
        for domain in shared:
            weight = len(self._current[domain]) / requests
            old_mean, old_error = _mean(self._champion[domain])
            new_mean, new_error = _mean(self._current[domain])
            before += weight * old_mean
            after += weight * new_mean
            variance += weight**2 * (old_error**2 + new_error**2)
        error = math.sqrt(variance)
        fell = before - after - Z * error > self._config.max_fall
        return Fall(before, after, error, requests) if fell else None

    def _empty(self) -> deque[float]:
        return deque(maxlen=self._config.max_requests)


def _mean(rates: Iterable[float]) -> tuple[float, float]:
    """Mean and its standard error."""
    values = list(rates)
    mean = sum(values) / len(values)
    spread = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(spread / len(values))
