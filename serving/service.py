"""The serving process: engine, HTTP face, tracking and the loop, started and stopped together."""

import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uvicorn

from pipeline.config import HotdraftConfig
from pipeline.models import fingerprint
from pipeline.registry import AdapterRegistry
from pipeline.replay import ReplayBuffer
from pipeline.supervisor import TrainerSupervisor
from pipeline.tracking import ServingTracker
from pipeline.watchdog import AcceptanceWatch
from serving.adapter_sync import AdapterSync
from serving.api import create_app
from serving.app import build_engine, draft_ranking
from serving.events import RoundStats, SwapEvent
from serving.hot_swap import HotSwapper
from serving.metrics import ServingMetrics
from serving.request import GenerationRequest, RequestStats


class TrackingListener:
    """Tells the tracker what the engine does."""

    def __init__(self, tracker: ServingTracker) -> None:
        self._tracker = tracker

    def on_round(self, stats: RoundStats) -> None:
        self._tracker.count(tokens=stats.new_tokens)

    def on_finish(self, request: GenerationRequest, stats: RequestStats, finish_reason: str) -> None:
        self._tracker.count(
            domain=request.domain,
            requests=1,
            rounds=stats.rounds,
            drafted=stats.drafted_tokens,
            accepted=stats.accepted_tokens,
        )

    def on_swap(self, event: SwapEvent) -> None:
        self._tracker.mark_swap(event.version, reason=event.reason)


def serve(config: HotdraftConfig, *, config_path: Path, overrides: Mapping[str, Any], self_improve: bool) -> None:
    """Serve until SIGTERM or SIGINT. With `self_improve` a trainer runs beside and its champions serve.

    Raises ValueError subclasses, before anything is started, for a configuration that cannot serve.
    """
    # Once it has shut down, uvicorn raises the signal it got again: that must not end us before we clean up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    config.run_dir.mkdir(parents=True, exist_ok=True)
    buffer = ReplayBuffer.of(config)
    engine = build_engine(config, buffer)
    metrics = ServingMetrics(engine, config.served_model_name, recorder=engine.recorder)
    tracker = ServingTracker(config)
    engine.listeners += [metrics, TrackingListener(tracker)]
    sync = None
    if config.draft is not None:
        ranking = draft_ranking(config, engine.decoder.vocab_size)
        swapper = HotSwapper(engine, fingerprint(config.draft), config.distill.lora.rank, ranking)
        sync = AdapterSync(swapper, AdapterRegistry(config), AcceptanceWatch(config.watchdog), metrics)
        engine.listeners.append(sync)
    supervisor = None
    if self_improve and config.draft is not None:
        supervisor = metrics.trainer = TrainerSupervisor(config_path, config, overrides)

    engine.start()
    tracker.start()
    try:
        if sync is not None:
            sync.start()
        if supervisor is not None:
            supervisor.start()
        app = create_app(engine, config, metrics=metrics)
        uvicorn.run(app, host=config.server.host, port=config.server.port, log_level="warning")
    finally:
        if supervisor is not None:
            supervisor.stop()
        if sync is not None:
            sync.stop()
        engine.stop()
        if engine.recorder is not None:
            engine.recorder.close()
        tracker.close()
