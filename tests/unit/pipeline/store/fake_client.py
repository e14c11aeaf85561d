"""A client of MLflow that keeps what it is told."""

import time

from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST

from hotdraft.pipeline.config.settings import HotdraftConfig, TrackingConfig


def every(config: HotdraftConfig, seconds: float) -> HotdraftConfig:
    return config.model_copy(update={"tracking": TrackingConfig(interval_seconds=seconds)})


class FakeClient:
    """Keeps what it is sent; refuses while `down`."""

    def __init__(self) -> None:
        self.down = False
        self.failure: Exception = MlflowException("the store is away")
        self.metrics: list = []
        self.tags: dict[str, str] = {}
        self.params: dict[str, str] = {}
        self.ended = False
        self.attempts = 0

    def connect(self, config: HotdraftConfig) -> "FakeClient":
        self._reach()
        return self

    def get_experiment_by_name(self, name):
        return type("Experiment", (), {"experiment_id": "1", "name": name, "lifecycle_stage": "active"})

    def create_run(self, experiment, start_time, tags, run_name):
        self._reach()
        self.started = start_time
        info = type("Info", (), {"run_id": "run"})
        return type("Run", (), {"info": info})

    def search_runs(self, experiments, query):
        return []

    def log_batch(self, run_id, metrics=(), params=()):
        self._reach()
        self.params |= {param.key: param.value for param in params}
        assert len(metrics) <= 1000
        self.metrics += metrics

    def get_model_version(self, name, version):
        raise MlflowException("none", error_code=RESOURCE_DOES_NOT_EXIST)

    def get_run(self, run_id):
        if run_id == "run":
            info = {"lifecycle_stage": "active", "run_name": "serving", "experiment_id": "1"}
            return type("Run", (), {"info": type("Info", (), info)})
        raise MlflowException("none", error_code=RESOURCE_DOES_NOT_EXIST)

    def set_tag(self, run_id, key, value):
        self._reach()
        self.tags[key] = value

    def set_terminated(self, run_id):
        self._reach()
        self.ended = True

    def _reach(self):
        self.attempts += 1
        if self.down:
            raise self.failure

    def values(self, key: str) -> list[float]:
        return [metric.value for metric in self.metrics if metric.key == key]


def wait_until(condition, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)
