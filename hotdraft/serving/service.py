"""The serving process: engine, HTTP face, tracking and the loop, started and stopped together."""

import logging
import signal
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.controls import ControlFile
from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.pipeline.models.loading import fingerprint
from hotdraft.pipeline.processes.job_process import start_job
from hotdraft.pipeline.processes.supervisor import TrainerSupervisor
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.pipeline.store.tracking import ServingTracker
from hotdraft.pipeline.watch.trial import Trials
from hotdraft.serving.engine.load import build_engine, draft_ranking
from hotdraft.serving.http.access import read_admin_keys, read_api_keys
from hotdraft.serving.http.admin.history import history_router
from hotdraft.serving.http.admin.routes import admin_router
from hotdraft.serving.http.app import create_app
from hotdraft.serving.http.connections import Connections, connection_limit
from hotdraft.serving.http.dashboard.router import dashboard_router
from hotdraft.serving.http.drain import DrainingServer
from hotdraft.serving.http.logs import configure_logging
from hotdraft.serving.metrics.listener import ServingMetrics
from hotdraft.serving.metrics.replay_watch import ReplayWatch
from hotdraft.serving.metrics.tracking import TrackingListener
from hotdraft.serving.updates.acceptance_watch import AcceptanceWatch
from hotdraft.serving.updates.adapter_sync import AdapterSync
from hotdraft.serving.updates.hot_swap import HotSwapper
from hotdraft.serving.updates.k_override import KOverride
from hotdraft.serving.updates.last_served import LastServedFile

logger = logging.getLogger(__name__)


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
