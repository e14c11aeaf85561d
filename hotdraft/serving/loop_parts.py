"""The loop beside an engine, ours or vLLM's: what follows the champion, trains, counts and tells of it all."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.controls import ControlFile
from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.pipeline.processes.job_process import start_job
from hotdraft.pipeline.processes.supervisor import TrainerSupervisor
from hotdraft.pipeline.processes.trainer import TrainerElsewhere
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.pipeline.store.tracking import ServingTracker
from hotdraft.pipeline.system.run_lock import RunLock
from hotdraft.pipeline.watch.trial import Trials
from hotdraft.serving.http.admin.history import history_router
from hotdraft.serving.http.admin.routes import ServedEngine, admin_router
from hotdraft.serving.http.dashboard.router import dashboard_router
from hotdraft.serving.messages.events import EngineListener
from hotdraft.serving.metrics.listener import ServingMetrics
from hotdraft.serving.metrics.replay_watch import ReplayWatch
from hotdraft.serving.metrics.state_metrics import ConnectionCounts, RecorderCounts, Sources
from hotdraft.serving.metrics.tracking_listener import TrackingListener
from hotdraft.serving.updates.acceptance_watch import AcceptanceWatch
from hotdraft.serving.updates.adapter_sync import AdapterSync
from hotdraft.serving.updates.k_override import KOverride
from hotdraft.serving.updates.last_served import LastServedFile
from hotdraft.serving.updates.swapper import Swapper


class LearningEngine(ServedEngine, Protocol):
    @property
    def listeners(self) -> list[EngineListener]: ...


class Part(Protocol):
    def start(self) -> None: ...
    def stop(self) -> None: ...


class LoopParts:
    """Listeners of the engine, started by whoever makes them, before it and after it."""

    def __init__(
        self,
        engine: LearningEngine,
        config: HotdraftConfig,
        config_path: Path,
        overrides: Mapping[str, Any],
        *,
        swapper: Swapper[Any] | None,
        self_improve: bool,
        recorder: RecorderCounts | None,
        writer: ReplayBuffer | None = None,
        connections: ConnectionCounts | None = None,
        lock: RunLock | None = None,
        k_override: KOverride | None = None,
    ) -> None:
        """Without a `swapper` there is no draft to improve; `writer` is the buffer that the recorder writes to."""
        registry, records = AdapterRegistry(config), JobRecords(config.run_dir)
        replay = ReplayWatch(ReplayBuffer.of(config, may_be_away=True), writer=writer)
        tracker = ServingTracker(config)
        self.sync: AdapterSync | None = None
        self.supervisor: TrainerSupervisor | None = None
        if swapper is not None:
            watch = AcceptanceWatch(Trials(config, server=uuid4().hex[:8]), registry)
            engine.listeners.append(watch)
            self.sync = AdapterSync(swapper, registry, LastServedFile(config.run_dir), watch)
            self.supervisor = TrainerSupervisor(config_path, config, overrides) if self_improve else None
        self.before_engine: list[Part] = [replay, tracker]
        self.after_engine: list[Part] = [part for part in (self.sync, self.supervisor) if part is not None]

        trainer, curves = self.supervisor or TrainerElsewhere(config.run_dir), tracker.curves
        sources = Sources(
            recorder=recorder,
            replay=replay,
            trainer=trainer,
            jobs=records,
            curves=curves,
            connections=connections,
            adapters=self.sync,
            lock=lock,
        )
        self.metrics = ServingMetrics(engine, config.served_model_name, sources)
        engine.listeners.extend([self.metrics, TrackingListener(curves)])
        admin = admin_router(
            engine,
            config,
            registry=registry,
            records=records,
            start_job=partial(start_job, config_path, config, overrides, origin="api"),
            controls=ControlFile(config.run_dir),
            k_override=k_override,
            trainer=trainer,
        )
        self.routers = [admin, history_router(curves.history), dashboard_router()]
