"""What vLLM's `/metrics` shows of ours: vLLM counts under its own names itself.

It is gathered by a thread now and then. vLLM asks for it on its event loop, where no request is answered while
something waits for the disk, and records of jobs are on one.
"""

import logging
import threading
from collections.abc import Iterator, Sequence

from prometheus_client import REGISTRY
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hotdraft.serving.metrics.listener import ServingMetrics

logger = logging.getLogger(__name__)

NOT_MEANT = ("hotdraft_rounds", "hotdraft_decode_seconds", "hotdraft_plain_decode_seconds", "hotdraft_runner")
"""Families that are of our own engine alone."""
GATHER_SECONDS = 1.0
PATIENCE_SECONDS = 10.0
"""With a disk that does not answer, when the server ends."""


class Exported(Collector):
    """In vLLM's registry from `start` to `stop`."""

    def __init__(self, metrics: ServingMetrics) -> None:
        self._metrics = metrics
        self._gathered: Sequence[Metric] = ()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        self._gather()
        self._thread.start()
        REGISTRY.register(self)

    def stop(self) -> None:
        if not self._thread.is_alive():  # it did not begin
            return
        REGISTRY.unregister(self)
        self._stopping.set()
        self._thread.join(PATIENCE_SECONDS)

    def collect(self) -> Iterator[Metric]:
        yield from self._gathered

    def describe(self) -> list[Metric]:
        return []

    def _run(self) -> None:
        while not self._stopping.wait(GATHER_SECONDS):
            try:
                self._gather()
            except Exception:
                logger.exception("metrics, which are gathered again")

    def _gather(self) -> None:
        self._gathered = [
            family
            for family in self._metrics.registry.collect()
            if family.name.startswith("hotdraft_") and family.name not in NOT_MEANT
        ]
