"""What serving achieved over time, in MLflow: summed up in-process, sent by a thread of its own.

Callers only add to counters under a lock. Every interval the sums become one point; points wait
in a bounded queue while the store is away and are sent, with their own times, when it is back.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from mlflow import MlflowClient
from mlflow.entities import Metric

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.store.connection import STORE_ERRORS, create_run, experiment_id, log_params, open_client
from hotdraft.pipeline.store.domains import MAX_DOMAINS, DomainNames
from hotdraft.pipeline.store.history import History, Point, Swap
from hotdraft.pipeline.store.lineage import Lineage
from hotdraft.pipeline.store.served import DomainCounts, Served

logger = logging.getLogger(__name__)

POINTS_PER_BATCH = 1000 // (MAX_DOMAINS + 8)  # MLflow takes at most 1000 metrics at once
POINTS_IN_HISTORY = 720  # an hour of traffic at the default interval
SWAPS_IN_HISTORY = 100
LONGEST_RETRY_SECONDS = 60.0


@dataclass
class _Sums:
    """Sums since the last point."""

    requests: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    by_domain: dict[str, tuple[int, int]] = field(default_factory=dict)
    """(drafted, accepted) of each domain."""
    opened: float = field(default_factory=time.monotonic)


class ServingTracker:
    """Logs served acceptance, speed and draft versions to a run in `tracking.serving_experiment`.

    Metrics, with the number of finished requests as step: `acceptance_rate` (accepted / drafted),
    `acceptance_rate/<domain>`, `mean_acceptance_length` (1 + accepted / rounds),
    `tokens_per_second`, `requests`, `draft_version`. Swaps are steps of `draft_version` and rows
    of the run's note, which links each version to the run that trained it. What a version did in
    service is written to the version and that run, see `pipeline.store.lineage`: every
    `tracking.served_seconds`, after a swap, and at the end.
    """

    def __init__(
        self,
        config: HotdraftConfig,
        *,
        connect: Callable[[HotdraftConfig], MlflowClient] = open_client,
        max_unsent_points: int = 2000,
    ) -> None:
        self._config = config
        self._connect = connect
        self._interval = config.tracking.interval_seconds
        self._lock = threading.Lock()
        self._window = _Sums()
        self._domains = DomainNames()
        self._points: deque[Point] = deque(maxlen=POINTS_IN_HISTORY)
        self._requests = 0
        self._version = 0
        self._swaps: list[Swap] = []
        self._served: dict[int, Served] = {}
        self._told_swaps = 0
        self._told: dict[int, Served] = {}
        self._tell_at = time.monotonic() + config.tracking.served_seconds
        self._unsent: deque[list[Metric]] = deque()
        self._max_unsent = max_unsent_points
        self._dropped = 0
        self._client: MlflowClient | None = None
        self._run_id: str | None = None
        self._params_logged = False
        self._started = time.time()
        self._retry_at = 0.0
        self._retry_delay = 0.0
        self._stopping = threading.Event()
        # Two threads: a store that hangs must not make points late.
        self._ticker = threading.Thread(target=self._tick, name="serving-tracker", daemon=True)
        self._sender = threading.Thread(target=self._work, name="serving-tracker-sender", daemon=True)

    @property
    def run_id(self) -> str | None:
        """The serving run; None until the store was first reached."""
        return self._run_id

    @property
    def dropped(self) -> int:
        """Points lost because the store was away for too long."""
        return self._dropped

    @property
    def unsent(self) -> int:
        """Points that wait for the store."""
        return len(self._unsent)

    def history(self) -> History:
        """What MLflow is told too, as far as it is kept in memory."""
        with self._lock:
            return History(self._interval, list(self._points), self._swaps[-SWAPS_IN_HISTORY:])

    def start(self) -> None:
        self._ticker.start()
        self._sender.start()

    def stop(self, patience: float = 10.0) -> None:
        """Send what is left and end the run; gives up after `patience` seconds."""
        self._stopping.set()
        if self._sender.is_alive():
            self._sender.join(patience)

    def count(
        self,
        *,
        domain: str | None = None,
        requests: int = 0,
        rounds: int = 0,
        drafted: int = 0,
        accepted: int = 0,
        tokens: int = 0,
    ) -> None:
        """Add to the sums of the current interval. Cheap, from any thread."""
        with self._lock:
            window = self._window
            self._requests += requests
            window.requests += requests
            window.rounds += rounds
            window.drafted += drafted
            window.accepted += accepted
            window.tokens += tokens
            if domain is not None and drafted:
                name = self._domains.name(domain)
                before = window.by_domain.get(name, (0, 0))
                window.by_domain[name] = (before[0] + drafted, before[1] + accepted)

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
            mean_acceptance_length=1 + window.accepted / window.rounds if window.rounds else None,
            domains={domain: accepted / drafted for domain, (drafted, accepted) in window.by_domain.items()},
        )
        self._points.append(point)
        now = int(point.time * 1000)
        self._queue([Metric(name, value, now, point.request) for name, value in point.values().items()])

    def _queue(self, point: list[Metric]) -> None:
        self._unsent.append(point)
        while len(self._unsent) > self._max_unsent:
            self._unsent.popleft()
            self._dropped += 1
            if self._dropped == 1:
                logger.warning("MLflow is away for too long: the oldest points of the curves are dropped")

    def _tick(self) -> None:
        while not self._stopping.wait(self._interval):
            with self._lock:
                self._end_window()

    def _work(self) -> None:
        while not self._stopping.wait(self._interval):
            if time.monotonic() >= self._retry_at:
                self._try_to_send()
        with self._lock:
            self._end_window()
        self._try_to_send(last=True)

    def _try_to_send(self, *, last: bool = False) -> None:
        try:
            self._send(last)
        except STORE_ERRORS as error:
            if not self._retry_delay:
                logger.warning("MLflow cannot be reached, points of the curves wait: %s", error)
            self._retry_delay = min(max(2 * self._retry_delay, self._interval), LONGEST_RETRY_SECONDS)
            self._retry_at = time.monotonic() + self._retry_delay
            return
        self._retry_delay = 0.0

    def _send(self, last: bool) -> None:
        if not (self._unsent or self._run_id):
            return
        client = self._client = self._client or self._connect(self._config)
        run_id = self._run_id = self._run_id or self._open_run(client)
        if not self._params_logged:
            self._log_params(client, run_id)
        while True:
            with self._lock:
                batch = [self._unsent.popleft() for _ in range(min(len(self._unsent), POINTS_PER_BATCH))]
            if not batch:
                break
            try:
                client.log_batch(run_id, metrics=[metric for point in batch for metric in point])
            except STORE_ERRORS:
                with self._lock:
                    for point in reversed(batch):
                        self._unsent.appendleft(point)
                raise
        self._tell(client, run_id, last)
        if last:
            client.set_terminated(run_id)

    def _open_run(self, client: MlflowClient) -> str:
        config = self._config
        experiment = experiment_id(client, config, config.tracking.serving_experiment)
        tags = {
            "hotdraft.target": config.target,
            "hotdraft.draft": config.draft or "",
            "hotdraft.k": str(config.engine.k),
        }
        name = f"serving {config.served_model_name}"
        return create_run(client, experiment, name, "hotdraft serve", tags, started=self._started)

    def _log_params(self, client: MlflowClient, run_id: str) -> None:
        config = self._config
        pair = {"target": config.target, "draft": config.draft, "dtype": config.dtype, "device": config.device}
        log_params(client, run_id, config.engine.model_dump(mode="json"), **pair)
        self._params_logged = True

    def _tell(self, client: MlflowClient, run_id: str, last: bool) -> None:
        with self._lock:
            swaps, served = list(self._swaps), dict(self._served)
        swapped = len(swaps) > self._told_swaps
        if not (last or swapped or time.monotonic() >= self._tell_at):
            return
        self._tell_at = time.monotonic() + self._config.tracking.served_seconds
        changed = {version: counts for version, counts in served.items() if counts != self._told.get(version)}
        if not (swapped or changed):
            return
        lineage = Lineage(client, self._config)
        lineage.describe_serving(run_id, swaps, served)
        self._told_swaps = len(swaps)
        for version, counts in changed.items():
            if version:
                lineage.record_served(version, run_id, counts)
            self._told[version] = counts
