"""A server that watches the version on trial; what it serves is made up."""

import numpy as np
from mlflow import MlflowClient

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.pipeline.watch.trial import Trials
from hotdraft.serving.messages.events import SwapEvent
from hotdraft.serving.messages.request import GenerationRequest, RequestStats, SamplingParams
from hotdraft.serving.updates.acceptance_watch import AcceptanceWatch


class Server:
    """Its watch, and what the rest of a server does to it."""

    def __init__(self, name: str, config: HotdraftConfig, registry: AdapterRegistry) -> None:
        self.watch = AcceptanceWatch(Trials(config, name), registry)
        self.registry = registry
        self.version = 0
        self.follow()

    def follow(self) -> None:
        before, self.version = self.version, self.registry.champion()
        if before != self.version:
            self.watch.on_swap(SwapEvent(self.version, before, "promotion", 0.0))

    def serve(
        self, rate: float, requests: int, *, client: str = "c", domain: str = "d", record: bool = True,
        seconds: float = 0.0, seed: int = 0,
    ) -> None:  # fmt: skip
        """Requests that finish now with about `rate` of 100 first tokens accepted, and others as ever."""
        for accepted in np.random.default_rng(seed).normal(100 * rate, 15, requests).clip(0, 100):
            stats = RequestStats(9, 100, 200, 150, 90, 100, int(accepted), 9, 0, 0, self.version, 0.0, 0.0, seconds)
            request = GenerationRequest("r", (1,), SamplingParams(), domain, record, client)
            self.watch.on_finish(request, stats, "length")


def watch_tags(client: MlflowClient, version: int) -> dict[str, str]:
    tags = client.get_model_version("hotdraft-draft", str(version)).tags
    return {key: value for key, value in tags.items() if key.startswith("watch/")}


def promote(registry: AdapterRegistry, version: int, *servers: Server) -> None:
    registry.promote(version, reason="better")
    for server in servers:
        server.follow()
        server.watch.turn()
