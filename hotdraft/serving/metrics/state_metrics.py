"""Metrics whose values live elsewhere and are read when Prometheus asks: they must be cheap to read."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, get_args

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hotdraft.pipeline.loop.job_record import State
from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.pipeline.processes.trainer import Trainer
from hotdraft.pipeline.replay.buffer import ReplaySize
from hotdraft.pipeline.store.curves import ServedCurves
from hotdraft.pipeline.system.run_lock import RunLock
from hotdraft.serving.graphs.recurring import GraphCounts
from hotdraft.serving.messages.events import CloseReason
from hotdraft.serving.metrics.families import MetricFamilies
from hotdraft.serving.metrics.replay_watch import ReplayWatch
from hotdraft.serving.models.runner import Computation


class EngineState(Protocol):
    @property
    def draft_version(self) -> int: ...
    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def num_slots(self) -> int: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def failures(self) -> Mapping[str, int]: ...
    @property
    def computations(self) -> Mapping[str, Computation]: ...
    @property
    def stalls(self) -> int: ...
    @property
    def graphs(self) -> GraphCounts: ...


class ConnectionCounts(Protocol):
    @property
    def open(self) -> int: ...
    @property
    def closed(self) -> Mapping[CloseReason, int]: ...


class RecorderCounts(Protocol):
    @property
    def recorded(self) -> int: ...
    @property
    def dropped(self) -> int: ...
    @property
    def left_out(self) -> Mapping[str, int]: ...
    @property
    def problem(self) -> str | None: ...


class AdapterCounts(Protocol):
    @property
    def refused(self) -> int:
        """Versions in the registry that were refused, by the gate or after they served."""
        ...

    @property
    def unusable(self) -> Mapping[int, str]:
        """Why, by version, of those that should serve and cannot do so here."""
        ...

    @property
    def problem(self) -> str | None:
        """Why the registry cannot be used, while that is so."""
        ...

    @property
    def swap_failures(self) -> int: ...
    @property
    def errors(self) -> int:
        """Failures in following the registry."""
        ...


@dataclass(frozen=True)
class Sources:
    """Whose counts are read, beside the engine's. Who is absent reads 0."""

    recorder: RecorderCounts | None = None
    replay: ReplayWatch | None = None
    trainer: Trainer | None = None
    jobs: JobRecords | None = None
    curves: ServedCurves | None = None
    connections: ConnectionCounts | None = None
    adapters: AdapterCounts | None = None
    lock: RunLock | None = None


_NO_REPLAY = ReplaySize(shards=0, bytes=0, requests=0)


class StateMetrics(Collector):
    def __init__(self, families: MetricFamilies, engine: EngineState, sources: Sources) -> None:
        self._families = families
        self._engine = engine
        self._sources = sources
        families.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        gauge, count = self._families.gauge_now, self._families.count_now
        engine, sources = self._engine, self._sources
        yield gauge("vllm:num_requests_running", "Requests being decoded.", engine.num_running)
        yield gauge("vllm:num_requests_waiting", "Requests waiting for a slot.", engine.num_waiting)
        taken = engine.num_running / engine.num_slots
        yield gauge("vllm:kv_cache_usage_perc", "KV cache in use, by slots: 1 is all of them.", taken)
        yield gauge("hotdraft_draft_version", "Adapter version served; 0 is none.", engine.draft_version)
        yield self._families.count_by_now(
            "place", "hotdraft_engine_failures", "What failed in the engine and was survived.", engine.failures
        )
        computed = [
            {"model": model, "runner": by.runner, "instructions": by.instructions, "weights": by.weights}
            for model, by in engine.computations.items()
        ]
        yield self._families.info_now("hotdraft_runner", "By what target and draft are computed.", computed)
        yield count("hotdraft_forward_stalls", "Waits for a thread that was kept from its core.", engine.stalls)
        graphs = engine.graphs
        by_state = {"captured": graphs.captured, "dropped": graphs.dropped}
        yield self._families.gauge_by_now("state", "hotdraft_graphs", "CUDA graphs.", by_state)
        says = "Forwards of a few tokens, drawings, verifications: launched one by one though they may be graphs."
        yield count("hotdraft_forwards_without_graph", says, graphs.missed)
        connections = sources.connections
        held, closed = (connections.open, connections.closed) if connections else (0, Counter[CloseReason]())
        yield gauge("hotdraft_connections", "Open connections.", held)
        by_reason = {reason: closed.get(reason, 0) for reason in get_args(CloseReason)}
        yield self._families.count_by_now(
            "reason", "hotdraft_connections_closed", "Connections ended by the server before their time.", by_reason
        )

        refused = failures = errors = 0
        unusable: Mapping[int, str] = {}
        if (adapters := sources.adapters) is not None:
            refused, failures, errors = adapters.refused, adapters.swap_failures, adapters.errors
            unusable = adapters.unusable
        yield count("hotdraft_adapters_rejected", "Adapters refused.", refused)
        yield count("hotdraft_swap_failures", "Attempts to swap an adapter in that failed.", failures)
        yield count("hotdraft_adapter_sync_errors", "Failures in following the adapter registry.", errors)
        says = "1 for an adapter version that should serve and cannot do so here."
        yield self._families.gauge_by_now(
            "version", "hotdraft_adapter_unusable", says, {str(version): 1.0 for version in unusable}
        )

        recorder = sources.recorder
        recorded, dropped = (recorder.recorded, recorder.dropped) if recorder else (0, 0)
        yield count("hotdraft_recorder_samples", "Requests recorded for training.", recorded)
        yield count("hotdraft_recorder_dropped", "Requests not recorded: queue full or write failed.", dropped)
        says = "Requests that nothing was to be recorded of, by what they asked for."
        left_out = dict(recorder.left_out) if recorder else {}
        yield self._families.count_by_now("reason", "hotdraft_recorder_left_out", says, left_out)
        size, errors = (sources.replay.size, sources.replay.errors) if sources.replay else (_NO_REPLAY, 0)
        yield gauge("hotdraft_replay_requests", "Requests in the replay buffer's shards.", size.requests)
        yield gauge("hotdraft_replay_bytes", "Size of the replay buffer's shards.", size.bytes)
        yield gauge("hotdraft_replay_shards", "Shards of the replay buffer.", size.shards)
        yield gauge("hotdraft_replay_quarantined", "Files of the replay buffer set aside.", size.quarantined)
        yield count("hotdraft_replay_errors", "Times the replay buffer could not be read or kept.", errors)

        trainer = sources.trainer
        running, restarts = (trainer.state == "running", trainer.restarts) if trainer else (False, 0)
        yield gauge("hotdraft_trainer_running", "1 while a trainer works in the run folder.", running)
        yield count("hotdraft_trainer_restarts", "Restarts of the trainer by the server.", restarts)
        with suppress(OSError):  # a folder that may not be looked at, or a bad disk, hides no other metric
            yield from self._of_jobs()

        curves = sources.curves
        unsent, lost = (curves.unsent, curves.dropped) if curves else (0, 0)
        yield gauge("hotdraft_mlflow_points_unsent", "Points of the curves that wait for MLflow.", unsent)
        yield count("hotdraft_mlflow_points_dropped", "Points lost: MLflow was away for too long.", lost)

    def _of_jobs(self) -> Iterator[Metric]:
        gauge, records = self._families.gauge_now, self._sources.jobs
        jobs = records.jobs() if records else []
        silent = max(map(records.silent_seconds, jobs), default=0.0) if records else 0.0
        counts = Counter[str](job.state for job in jobs)
        by_state = {state: counts[state] for state in get_args(State)}
        yield self._families.gauge_by_now("state", "hotdraft_jobs", "Distillation jobs on record.", by_state)
        yield gauge("hotdraft_job_silent_seconds", "Since the running job last told how far it is.", silent)
