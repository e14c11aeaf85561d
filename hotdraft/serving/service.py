"""The serving process: engine, HTTP face, tracking and the loop, started and stopped together."""

import logging
import signal
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from hotdraft.pipeline.config import HotdraftConfig
from hotdraft.pipeline.controls import ControlFile
from hotdraft.pipeline.job_process import start_job
from hotdraft.pipeline.jobs import JobRecords
from hotdraft.pipeline.models import fingerprint
from hotdraft.pipeline.registry import AdapterRegistry
from hotdraft.pipeline.replay import ReplayBuffer
from hotdraft.pipeline.supervisor import TrainerSupervisor
from hotdraft.pipeline.tracking import ServingTracker
from hotdraft.pipeline.trial import Trials
from hotdraft.serving.acceptance_watch import AcceptanceWatch
from hotdraft.serving.access import read_admin_keys, read_api_keys
from hotdraft.serving.adapter_sync import AdapterSync
from hotdraft.serving.admin import admin_router
from hotdraft.serving.api import create_app
from hotdraft.serving.app import build_engine, draft_ranking
from hotdraft.serving.connections import Connections, connection_limit
from hotdraft.serving.dashboard.router import dashboard_router
from hotdraft.serving.drain import DrainingServer
from hotdraft.serving.events import RoundStats, SwapClock, SwapEvent
from hotdraft.serving.history import history_router
from hotdraft.serving.hot_swap import HotSwapper
from hotdraft.serving.k_override import KOverride
from hotdraft.serving.last_served import LastServedFile
from hotdraft.serving.logs import configure_logging
from hotdraft.serving.metrics import ServingMetrics
from hotdraft.serving.replay_watch import ReplayWatch
from hotdraft.serving.request import GenerationRequest, RequestStats

logger = logging.getLogger(__name__)


class TrackingListener:
    """Tells the tracker what the engine does."""

    def __init__(self, tracker: ServingTracker) -> None:
        self._tracker = tracker
        self._clock = SwapClock()

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
        if self._clock.is_of_one_version(stats):
            self._tracker.served(
                stats.draft_version,
                domain=request.domain,
                drafted=stats.drafted_tokens,
                examined=stats.examined_tokens,
                accepted=stats.accepted_tokens,
            )

    def on_swap(self, event: SwapEvent) -> None:
        self._clock.swapped()
        self._tracker.mark_swap(event.version, reason=event.reason)


def serve(config: HotdraftConfig, *, config_path: Path, overrides: Mapping[str, Any], self_improve: bool) -> None:
    """Serve until SIGTERM or SIGINT. With `self_improve` a trainer runs beside and its champions serve.

    Raises ValueError subclasses, before anything is started, for a configuration that cannot serve.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until the server runs
    configure_logging(config.server.log_format)
    api_keys, admin_keys = read_api_keys(config.server), read_admin_keys(config.server)
    config.run_dir.mkdir(parents=True, exist_ok=True)
    buffer = ReplayBuffer.of(config)
    engine = build_engine(config, buffer)
    metrics = ServingMetrics(engine, config.served_model_name, recorder=engine.recorder)
    tracker = metrics.state.tracker = ServingTracker(config)
    replay_watch = metrics.state.replay = ReplayWatch(ReplayBuffer.of(config), writer=buffer)
    engine.listeners += [metrics, TrackingListener(tracker)]
    registry = AdapterRegistry(config)
    records = metrics.state.jobs = JobRecords(config.run_dir)
    controls = ControlFile(config.run_dir)
    k_override = KOverride(engine, controls)
    sync = None
    if config.draft is not None:
        ranking = draft_ranking(config, engine.decoder.vocab_size)
        swapper = HotSwapper(engine, fingerprint(config.draft), ranking)
        last_served = LastServedFile(config.run_dir)
        watch = AcceptanceWatch(Trials(config, server=uuid4().hex[:8]), registry)
        engine.listeners.append(watch)
        sync = AdapterSync(swapper, registry, last_served, watch, metrics)
    supervisor = None
    if self_improve and config.draft is not None:
        supervisor = metrics.state.trainer = TrainerSupervisor(config_path, config, overrides)

    admin = admin_router(
        engine,
        config,
        registry=registry,
        records=records,
        start_job=partial(start_job, config_path, config, overrides, origin="api"),
        controls=controls,
        k_override=k_override,
        supervisor=supervisor,
    )
    routers = [admin, history_router(tracker.history), dashboard_router()]
    app = create_app(engine, config, metrics=metrics, api_keys=api_keys, admin_keys=admin_keys, routers=routers)

    engine.start()
    tracker.start()
    replay_watch.start()
    try:
        k_override.start()
        if sync is not None:
            sync.start()
        if supervisor is not None:
            supervisor.start()
        logger.info("serving %s at http://%s:%d", config.served_model_name, config.server.host, config.server.port)
        connections = Connections(config.server, connection_limit(config.server.max_connections))
        metrics.state.connections = connections
        DrainingServer(app, config.server, engine, connections).run()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # we are about to end
        if supervisor is not None:
            supervisor.stop()
        if sync is not None:
            sync.stop()
        k_override.stop()
        engine.stop()
        if engine.recorder is not None:
            engine.recorder.close()
        tracker.close()
        replay_watch.stop()
