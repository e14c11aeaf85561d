"""What vLLM's `/metrics` shows of ours: vLLM counts under its own names itself.

It is gathered by a thread now and then. vLLM asks for it on its event loop, where no request is answered while
something waits for the disk, and records of jobs are on one.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from prometheus_client import REGISTRY
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hotdraft.pipeline.system.poller import Poller
from hotdraft.serving.metrics.listener import ServingMetrics

NOT_MEANT = ("hotdraft_rounds", "hotdraft_decode_seconds", "hotdraft_plain_decode_seconds", "hotdraft_runner")
"""Families that are of our own engine alone."""
GATHER_SECONDS = 1.0


class Exported(Collector):
    """In vLLM's registry from `start` to `stop`."""

    def __init__(self, metrics: ServingMetrics) -> None:
        self._metrics = metrics
        self._gathered: Sequence[Metric] = ()
        self._poller = Poller(self._gather, GATHER_SECONDS, name="metrics", failing="metrics cannot be gathered")

    def start(self) -> None:
        self._gather()
        self._poller.start()
        REGISTRY.register(self)

    def stop(self) -> None:
        with suppress(KeyError):  # it did not begin
            REGISTRY.unregister(self)
        self._poller.stop()

    def collect(self) -> Iterator[Metric]:
        yield from self._gathered

    def describe(self) -> list[Metric]:
        return []

    def _gather(self) -> None:
        self._gathered = [
            family
            for family in self._metrics.registry.collect()
            if family.name.startswith("hotdraft_") and family.name not in NOT_MEANT
        ]
