"""Metrics whose values live elsewhere and are read when Prometheus asks: they must be cheap to read."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol, get_args

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pipeline.job_record import State
from pipeline.replay import ReplaySize
from serving.metric_families import MetricFamilies


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


class RecorderCounts(Protocol):
    @property
    def recorded(self) -> int: ...
    @property
    def dropped(self) -> int: ...


class ReplayState(Protocol):
    @property
    def size(self) -> ReplaySize: ...


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
        self.adapters_rejected = 0
        """How many versions in the registry were refused, by the gate or as broken."""
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
        yield count("hotdraft_adapters_rejected", "Adapters refused.", self.adapters_rejected)

        recorder = self.recorder
        recorded, dropped = (recorder.recorded, recorder.dropped) if recorder else (0, 0)
        yield count("hotdraft_recorder_samples", "Requests recorded for training.", recorded)
        yield count("hotdraft_recorder_dropped", "Requests not recorded: queue full.", dropped)
        size = self.replay.size if self.replay else _NO_REPLAY
        yield gauge("hotdraft_replay_requests", "Requests in the replay buffer's shards.", size.requests)
        yield gauge("hotdraft_replay_bytes", "Size of the replay buffer's shards.", size.bytes)
        yield gauge("hotdraft_replay_shards", "Shards of the replay buffer.", size.shards)

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
