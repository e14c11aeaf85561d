"""Metrics whose values live elsewhere and are read when Prometheus asks: they must be cheap to read."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, get_args

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hotdraft.pipeline.loop.job_record import State
from hotdraft.pipeline.replay.buffer import ReplaySize
from hotdraft.serving.messages.events import CloseReason
from hotdraft.serving.metrics.families import MetricFamilies


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


class RecorderCounts(Protocol):
    @property
    def recorded(self) -> int: ...
    @property
    def dropped(self) -> int: ...
    @property
    def problem(self) -> str | None: ...


class ReplayState(Protocol):
    @property
    def size(self) -> ReplaySize: ...
    @property
    def errors(self) -> int: ...


class TrackerCounts(Protocol):
    @property
    def unsent(self) -> int: ...
    @property
    def dropped(self) -> int: ...


class TrainerState(Protocol):
    @property
    def state(self) -> str: ...
    @property
    def restarts(self) -> int: ...


class ConnectionCounts(Protocol):
    @property
    def open(self) -> int: ...
    @property
    def closed(self) -> Mapping[CloseReason, int]: ...


class Job(Protocol):
    @property
    def state(self) -> str: ...


class JobRecords(Protocol):
    def jobs(self) -> Sequence[Job]: ...


_NO_REPLAY = ReplaySize(shards=0, bytes=0, requests=0)


class StateMetrics(Collector):
    """Whoever is absent reads 0; all but the engine may be set later, when they start."""

    def __init__(self, families: MetricFamilies, engine: EngineState) -> None:
        self.recorder: RecorderCounts | None = None
        self.replay: ReplayState | None = None
        self.trainer: TrainerState | None = None
        self.jobs: JobRecords | None = None
        self.tracker: TrackerCounts | None = None
        self.connections: ConnectionCounts | None = None
        self.adapters_rejected = 0
        """How many versions in the registry were refused, by the gate or after they served."""
        self.unusable_adapters: Mapping[int, str] = {}
        """Why, by version, of those that should serve and cannot do so here; put in place as a whole."""
        self._families = families
        self._engine = engine
        families.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        gauge, count = self._families.gauge_now, self._families.count_now
        engine = self._engine
        yield gauge("vllm:num_requests_running", "Requests being decoded.", engine.num_running)
        yield gauge("vllm:num_requests_waiting", "Requests waiting for a slot.", engine.num_waiting)
        taken = engine.num_running / engine.num_slots
        yield gauge("vllm:kv_cache_usage_perc", "KV cache in use, by slots: 1 is all of them.", taken)
        yield gauge("hotdraft_draft_version", "Adapter version served; 0 is none.", engine.draft_version)
        yield self._families.count_by_now(
            "place", "hotdraft_engine_failures", "What failed in the engine and was survived.", engine.failures
        )
        connections = self.connections
        held, closed = (connections.open, connections.closed) if connections else (0, Counter[CloseReason]())
        yield gauge("hotdraft_connections", "Open connections.", held)
        by_reason = {reason: closed.get(reason, 0) for reason in get_args(CloseReason)}
        yield self._families.count_by_now(
            "reason", "hotdraft_connections_closed", "Connections ended by the server before their time.", by_reason
        )
        yield count("hotdraft_adapters_rejected", "Adapters refused.", self.adapters_rejected)
        unusable = {str(version): 1.0 for version in self.unusable_adapters}
        says = "1 for an adapter version that should serve and cannot do so here."
        yield self._families.gauge_by_now("version", "hotdraft_adapter_unusable", says, unusable)

        recorder = self.recorder
        recorded, dropped = (recorder.recorded, recorder.dropped) if recorder else (0, 0)
        yield count("hotdraft_recorder_samples", "Requests recorded for training.", recorded)
        yield count("hotdraft_recorder_dropped", "Requests not recorded: queue full or write failed.", dropped)
        size, errors = (self.replay.size, self.replay.errors) if self.replay else (_NO_REPLAY, 0)
        yield gauge("hotdraft_replay_requests", "Requests in the replay buffer's shards.", size.requests)
        yield gauge("hotdraft_replay_bytes", "Size of the replay buffer's shards.", size.bytes)
        yield gauge("hotdraft_replay_shards", "Shards of the replay buffer.", size.shards)
        yield gauge("hotdraft_replay_quarantined", "Files of the replay buffer set aside.", size.quarantined)
        yield count("hotdraft_replay_errors", "Times the replay buffer could not be read or kept.", errors)

        trainer = self.trainer
        running, restarts = (trainer.state == "running", trainer.restarts) if trainer else (False, 0)
        yield gauge("hotdraft_trainer_running", "1 while the trainer runs.", running)
        yield count("hotdraft_trainer_restarts", "Restarts of the trainer.", restarts)
        jobs = Counter(job.state for job in self.jobs.jobs()) if self.jobs else Counter[str]()
        by_state = {state: jobs[state] for state in get_args(State)}
        yield self._families.gauge_by_now("state", "hotdraft_jobs", "Distillation jobs on record.", by_state)

        tracker = self.tracker
        unsent, lost = (tracker.unsent, tracker.dropped) if tracker else (0, 0)
        yield gauge("hotdraft_mlflow_points_unsent", "Points of the curves that wait for MLflow.", unsent)
        yield count("hotdraft_mlflow_points_dropped", "Points lost: MLflow was away for too long.", lost)
