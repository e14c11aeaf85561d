"""Keeps the live draft at the registry's champion, and the champion honest.

The alias in the registry is the only truth: a promotion by the trainer, a rollback by the watchdog
and a command by a person all move the alias, and this thread follows it. Only a server that starts
while the registry cannot be asked takes up what served last, until the registry answers.
"""

import logging
import threading
from concurrent.futures import CancelledError
from pathlib import Path

from pipeline.adapters import AdapterError
from pipeline.mlflow_store import STORE_ERRORS, StoreError
from pipeline.registry import REJECTED, ROLLED_BACK, AdapterRegistry, RegistryError
from pipeline.watchdog import AcceptanceWatch
from serving.events import RoundStats, SwapClock, SwapEvent
from serving.hot_swap import HotSwapper, SwapError, SwapReason
from serving.last_served import LastServedFile
from serving.metrics import ServingMetrics
from serving.request import GenerationRequest, RequestStats

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
PATIENCE_SECONDS = 10.0
"""With a store that does not answer, when the server ends."""


class AdapterSync:
    """An `EngineListener` with a thread that polls the registry, swaps, watches and rolls back."""

    def __init__(
        self,
        swapper: HotSwapper,
        registry: AdapterRegistry,
        last_served: LastServedFile,
        watch: AcceptanceWatch,
        metrics: ServingMetrics,
    ) -> None:
        self._swapper = swapper
        self._registry = registry
        self._last_served = last_served
        self._watch = watch
        self._metrics = metrics
        self._lock = threading.Lock()
        self._clock = SwapClock()
        self._store_is_down = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="adapter-sync", daemon=True)

    def start(self) -> None:
        """Serve the champion, or what served last if nobody can say which that is, then keep following it."""
        self._turn("startup")
        if self._store_is_down and not self._swapper.live_version:
            self._take_up_last_served()
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(PATIENCE_SECONDS)

    def on_round(self, stats: RoundStats) -> None: ...

    def on_finish(self, request: GenerationRequest, stats: RequestStats, finish_reason: str) -> None:
        with self._lock:
            if self._clock.is_of_one_version(stats):
                self._watch.served(request.domain, stats.accepted_tokens, stats.examined_tokens)

    def on_swap(self, event: SwapEvent) -> None:
        with self._lock:
            self._clock.swapped()
            self._watch.swapped()

    def _run(self) -> None:
        while not self._stopping.wait(POLL_SECONDS):
            self._turn("promotion")

    def _turn(self, reason: SwapReason) -> None:
        """Watch and follow once; a store that cannot be reached changes nothing."""
        try:
            self._roll_back_if_worse()
            self._follow(reason)
            refused = [v for v in self._registry.versions() if v.status in (REJECTED, ROLLED_BACK)]
            self._metrics.state.adapters_rejected = len(refused)
        except (StoreError, *STORE_ERRORS) as error:
            if not self._store_is_down:
                logger.warning("the adapter registry cannot be reached, version %d serves on: %s",
                               self._swapper.live_version, error)  # fmt: skip
            self._store_is_down = True
        except (RegistryError, CancelledError) as error:
            logger.warning("adapter sync: %s", error)
        else:
            self._store_is_down = False

    def _roll_back_if_worse(self) -> None:
        with self._lock:
            fall = self._watch.fall()
        version = self._swapper.live_version
        if fall is not None and version and version == self._registry.champion():
            logger.warning("rolling back version %d: %s", version, fall)
            self._registry.rollback(reason=str(fall), version=version)

    def _follow(self, reason: SwapReason) -> None:
        version, live = self._registry.champion(), self._swapper.live_version
        if version == live:
            if not version:
                self._last_served.write(0, None)
            return
        try:
            folder = self._registry.download(version) if version else None
            self._swap(version, folder, "rollback" if version < live else reason)
        except (AdapterError, RegistryError, SwapError) as error:
            logger.error("version %d cannot serve, version %d serves on: %s", version, live, error)
            self._metrics.count_swap_failure()
            self._registry.rollback(reason=f"could not be swapped in: {error}", version=version)
        else:
            self._last_served.write(version, folder)

    def _take_up_last_served(self) -> None:
        last = self._last_served.read()
        if last is None:
            return
        logger.warning("taking up version %d, which served last, until the registry can be asked", last.version)
        try:
            self._swap(last.version, last.folder, "startup")
        except (AdapterError, SwapError, CancelledError, OSError) as error:
            logger.error("version %d cannot serve, the draft serves without an adapter: %s", last.version, error)
            self._metrics.count_swap_failure()

    def _swap(self, version: int, folder: Path | None, reason: SwapReason) -> None:
        """Raises `AdapterError` or `SwapError` where a check fails."""
        event = self._swapper.swap(self._swapper.stage(version, folder), reason)
        logger.info("draft version %d serves, after a stall of %.1f ms (%s)",
                    version, 1000 * event.stall_seconds, event.reason)  # fmt: skip
