"""The served curves in memory: callers add to sums under a lock, of which every interval makes a point.

Points wait in a bounded queue for whoever sends them to MLflow, with their own times.
"""

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import accumulate, takewhile

from mlflow.entities import Metric

from hotdraft.pipeline.store.domains import DomainNames
from hotdraft.pipeline.store.history import History, Point, Swap
from hotdraft.pipeline.store.served import DomainCounts, Served

logger = logging.getLogger(__name__)

METRICS_AT_ONCE = 1000
"""That MLflow takes, at most."""
POINTS_IN_HISTORY = 720  # an hour of traffic at the default interval
SWAPS_IN_HISTORY = 100


@dataclass
class _Sums:
    """Sums since the last point."""

    requests: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_guesses: int = 0
    tokens: int = 0
    batches: int = 0
    """Rounds of all their requests together."""
    drafted_k: int = 0
    """Sum of their k."""
    plain: int = 0
    """Those with k = 0."""
    seconds: float = 0.0
    plain_seconds: float = 0.0
    by_domain: dict[str, tuple[int, int]] = field(default_factory=dict)
    """(drafted, accepted) of each domain."""
    opened: float = field(default_factory=time.monotonic)


class ServedCurves:
    """Figures of requests, rounds and swaps as they come, from any thread."""

    def __init__(self, interval_seconds: float, max_unsent_points: int) -> None:
        self._interval = interval_seconds
        self._lock = threading.Lock()
        self._window = _Sums()
        self._domains = DomainNames()
        self._points: deque[Point] = deque(maxlen=POINTS_IN_HISTORY)
        self._requests = 0
        self._version = 0
        self._swaps: list[Swap] = []
        self._served: dict[int, Served] = {}
        self._unsent: deque[list[Metric]] = deque()
        self._max_unsent = max_unsent_points
        self.dropped = 0
        """Points lost because the store was away for too long."""

    @property
    def unsent(self) -> int:
        """Points that wait for the store."""
        return len(self._unsent)

    def history(self) -> History:
        """What MLflow is told too, as far as it is kept in memory."""
        with self._lock:
            return History(self._interval, list(self._points), self._swaps[-SWAPS_IN_HISTORY:])

    def so_far(self) -> tuple[list[Swap], dict[int, Served]]:
        """All swaps, and what each version served."""
        with self._lock:
            return list(self._swaps), dict(self._served)

    def count(
        self,
        *,
        domain: str | None = None,
        requests: int = 0,
        rounds: int = 0,
        drafted: int = 0,
        accepted: int = 0,
        accepted_guesses: int = 0,
        tokens: int = 0,
    ) -> None:
        """Add to the sums of the current interval. Cheap, from any thread.

        `drafted` and `accepted` are the draft model's, whose acceptance this follows; guesses make rounds longer.
        """
        with self._lock:
            window = self._window
            self._requests += requests
            window.requests += requests
            window.rounds += rounds
            window.drafted += drafted
            window.accepted += accepted
            window.accepted_guesses += accepted_guesses
            window.tokens += tokens
            if domain is not None and drafted:
                name = self._domains.name(domain)
                before = window.by_domain.get(name, (0, 0))
                window.by_domain[name] = (before[0] + drafted, before[1] + accepted)

    def count_round(self, k: int, tokens: int, seconds: float, plain_seconds: float | None) -> None:
        """Add a round that gave `tokens` in `seconds`, for which plain decoding takes `plain_seconds`. Cheap."""
        with self._lock:
            window = self._window
            window.tokens += tokens
            window.batches += 1
            window.drafted_k += k
            window.plain += k == 0
            if plain_seconds is not None:
                window.seconds += seconds
                window.plain_seconds += plain_seconds

    def served(self, version: int, *, domain: str, drafted: int, examined: int, accepted: int) -> None:
        """Count a request that `version` served from its first round to its last. Cheap, from any thread."""
        now = time.time()
        with self._lock:
            by_domain = {self._domains.name(domain): DomainCounts(1, examined, accepted)}
            one = Served(1, drafted, examined, accepted, since=now, until=now, by_domain=by_domain)
            self._served[version] = self._served.get(version, Served()) + one

    def mark_swap(self, version: int, *, reason: str) -> None:
        """From here on `version` drafts: no point mixes two versions."""
        with self._lock:
            self._end_window()
            seconds = time.time()
            now = int(seconds * 1000)
            before, self._version = self._version, version
            self._queue(
                [
                    Metric("draft_version", before, now - 1, self._requests),
                    Metric("draft_version", version, now, self._requests),
                ]
            )
            self._swaps.append(Swap(seconds, self._requests, version, reason))

    def end_interval(self) -> None:
        """Make a point of the sums since the last one, if there was traffic."""
        with self._lock:
            self._end_window()

    def take_unsent(self) -> list[list[Metric]]:
        """The oldest points, as many as MLflow takes at once."""
        with self._lock:
            metrics = accumulate(map(len, self._unsent))
            fitting = sum(1 for _ in takewhile(lambda count: count <= METRICS_AT_ONCE, metrics))
            return [self._unsent.popleft() for _ in range(fitting)]

    def put_back(self, points: list[list[Metric]]) -> None:
        """They could not be sent."""
        with self._lock:
            self._unsent.extendleft(reversed(points))

    def _end_window(self) -> None:
        window, self._window = self._window, _Sums()
        if not (window.requests or window.rounds or window.tokens):
            return
        point = Point(
            time=time.time(),
            request=self._requests,
            tokens_per_second=window.tokens / max(time.monotonic() - window.opened, 1e-6),
            draft_version=self._version,
            acceptance_rate=window.accepted / window.drafted if window.drafted else None,
            mean_acceptance_length=(
                1 + (window.accepted + window.accepted_guesses) / window.rounds if window.rounds else None
            ),
            speedup=window.plain_seconds / window.seconds if window.seconds else None,
            mean_k=window.drafted_k / window.batches if window.batches else None,
            plain_share=window.plain / window.batches if window.batches else None,
            domains={domain: accepted / drafted for domain, (drafted, accepted) in window.by_domain.items()},
        )
        self._points.append(point)
        now = int(point.time * 1000)
        self._queue([Metric(name, value, now, point.request) for name, value in point.values().items()])

    def _queue(self, point: list[Metric]) -> None:
        self._unsent.append(point)
        while len(self._unsent) > self._max_unsent:
            self._unsent.popleft()
            self.dropped += 1
            if self.dropped == 1:
                logger.warning("MLflow is away for too long: the oldest points of the curves are dropped")
