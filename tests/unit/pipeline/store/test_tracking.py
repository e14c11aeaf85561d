import threading
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST

from hotdraft.pipeline.config.settings import HotdraftConfig, TrackingConfig
from hotdraft.pipeline.store.connection import experiment_id, open_client
from hotdraft.pipeline.store.curves import POINTS_IN_HISTORY
from hotdraft.pipeline.store.domains import MAX_DOMAINS
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.pipeline.store.tracking import ServingTracker, curves_page


def every(config: HotdraftConfig, seconds: float) -> HotdraftConfig:
    return config.model_copy(update={"tracking": TrackingConfig(interval_seconds=seconds)})


class FakeClient:
    """Keeps what it is sent; refuses while `down`."""

    def __init__(self) -> None:
        self.down = False
        self.metrics: list = []
        self.tags: dict[str, str] = {}
        self.params: dict[str, str] = {}
        self.ended = False
        self.attempts = 0

    def connect(self, config: HotdraftConfig) -> "FakeClient":
        self._reach()
        return self

    def get_experiment_by_name(self, name):
        return type("Experiment", (), {"experiment_id": "1", "lifecycle_stage": "active"})

    def create_run(self, experiment, start_time, tags, run_name):
        self._reach()
        self.started = start_time
        info = type("Info", (), {"run_id": "run"})
        return type("Run", (), {"info": info})

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
            raise MlflowException("the store is away")

    def values(self, key: str) -> list[float]:
        return [metric.value for metric in self.metrics if metric.key == key]


@pytest.fixture
def fake() -> FakeClient:
    return FakeClient()


@pytest.fixture
def config(tmp_path) -> HotdraftConfig:
    return HotdraftConfig(target="tiny", run_dir=tmp_path, tracking=TrackingConfig(interval_seconds=0.02))


def wait_until(condition, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def test_points_follow_their_definitions(fake, config):
    tracker = ServingTracker(every(config, 60), connect=fake.connect)
    tracker.start()
    tracker.curves.count(domain="math", rounds=4, drafted=12, accepted=9, tokens=13)
    tracker.curves.count(domain="sql", rounds=2, drafted=6, accepted=0, tokens=2)
    tracker.curves.count(domain="sql", requests=2)
    tracker.stop()
    assert fake.values("acceptance_rate") == [9 / 18]
    assert fake.values("acceptance_rate/math") == [9 / 12]
    assert fake.values("acceptance_rate/sql") == [0]
    assert fake.values("mean_acceptance_length") == [1 + 9 / 6]
    assert fake.values("requests") == [2]
    assert fake.values("draft_version") == [0]
    assert fake.values("tokens_per_second")[0] > 15
    assert {metric.step for metric in fake.metrics} == {2}
    assert fake.ended


def test_speedup_is_what_plain_rounds_would_have_taken_over_what_the_rounds_took(fake, config):
    tracker = ServingTracker(every(config, 60), connect=fake.connect)
    tracker.start()
    tracker.curves.count_round(k=3, tokens=4, seconds=0.2, plain_seconds=0.4)
    tracker.curves.count_round(k=3, tokens=1, seconds=0.2, plain_seconds=0.1)
    tracker.curves.count_round(k=0, tokens=1, seconds=0.1, plain_seconds=0.1)
    tracker.curves.count_round(k=2, tokens=1, seconds=0.1, plain_seconds=None)  # before costs were measured
    tracker.stop()
    assert fake.values("speedup") == pytest.approx([0.6 / 0.5])
    assert fake.values("mean_k") == [2]
    assert fake.values("plain_share") == [0.25]


def test_history_has_the_points_and_swaps_that_mlflow_is_told(fake, config):
    tracker = ServingTracker(every(config, 60), connect=fake.connect)
    tracker.start()
    tracker.curves.count(domain="math", requests=1, rounds=4, drafted=12, accepted=9, tokens=13)
    tracker.curves.mark_swap(3, reason="promotion")
    tracker.curves.count(requests=1, rounds=2, tokens=2)
    before = tracker.curves.history()
    tracker.stop()
    history = tracker.curves.history()
    assert history.interval_seconds == 60
    assert before.points == history.points[:1], "what is not yet over is no point"
    first, second = history.points
    assert (first.request, first.draft_version, first.acceptance_rate) == (1, 0, 9 / 12)
    assert (first.mean_acceptance_length, first.domains) == (1 + 9 / 4, {"math": 9 / 12})
    assert (second.request, second.draft_version, second.acceptance_rate, second.domains) == (2, 3, None, {})
    [swap] = history.swaps
    assert (swap.request, swap.version, swap.reason) == (1, 3, "promotion")
    assert first.time <= swap.time <= second.time
    assert fake.values("acceptance_rate") == [first.acceptance_rate]
    assert fake.values("tokens_per_second") == [first.tokens_per_second, second.tokens_per_second]


def test_history_is_bounded(fake, config):
    tracker = ServingTracker(every(config, 60), connect=fake.connect)
    for version in range(POINTS_IN_HISTORY + 10):
        tracker.curves.count(requests=1, tokens=1)
        tracker.curves.mark_swap(version, reason="test")
    history = tracker.curves.history()
    assert len(history.points) == POINTS_IN_HISTORY
    assert history.points[-1].request == POINTS_IN_HISTORY + 10
    assert len(history.swaps) < POINTS_IN_HISTORY
    assert history.swaps[-1].version == POINTS_IN_HISTORY + 9


def test_idle_intervals_make_no_points(fake, config):
    tracker = ServingTracker(config, connect=fake.connect)
    tracker.start()
    tracker.curves.count(rounds=1, drafted=2, accepted=1, tokens=2)
    wait_until(lambda: fake.metrics)
    time.sleep(0.1)
    tracker.stop()
    assert fake.values("acceptance_rate") == [0.5]


def test_a_swap_parts_the_points_and_is_noted(fake, config):
    tracker = ServingTracker(every(config, 60), connect=fake.connect)
    tracker.start()
    tracker.curves.count(requests=1, rounds=1, drafted=4, accepted=1, tokens=2)
    tracker.curves.mark_swap(3, reason="promoted | gain\n+0.1")
    tracker.curves.count(requests=1, rounds=1, drafted=4, accepted=3, tokens=4)
    tracker.stop()
    assert fake.values("acceptance_rate") == [0.25, 0.75]
    assert fake.values("draft_version") == [0, 0, 3, 3]
    assert fake.tags["hotdraft.draft_version"] == "3"
    link = "[version 3](#/models/hotdraft-draft/versions/3)"
    assert f"| 1 | {link} | promoted gain +0.1 | an unknown run |" in fake.tags["mlflow.note.content"].splitlines()


def test_an_outage_delays_points_and_loses_none(fake, config, caplog):
    tracker = ServingTracker(config, connect=fake.connect)
    tracker.start()
    tracker.curves.count(requests=1, rounds=1, drafted=2, accepted=1, tokens=2)
    wait_until(lambda: fake.metrics)
    fake.down = True
    for _ in range(5):
        tracker.curves.count(requests=1, rounds=1, drafted=2, accepted=1, tokens=2)
        time.sleep(0.05)
    attempts = fake.attempts
    assert len(fake.values("requests")) == 1
    fake.down = False
    wait_until(lambda: max(fake.values("requests")) == 6)
    tracker.stop()
    assert attempts >= 3
    assert tracker.curves.dropped == 0
    assert fake.values("requests") == sorted(fake.values("requests"))
    stamps = [metric.timestamp for metric in fake.metrics]
    assert max(stamps) - min(stamps) >= 150, "points keep the time at which they were made"
    assert sum("MLflow cannot be used" in record.message for record in caplog.records) == 1


def test_a_store_that_is_away_from_the_start_is_found_later(fake, config):
    fake.down = True
    tracker = ServingTracker(config, connect=fake.connect)
    tracker.start()
    tracker.curves.count(requests=1, rounds=1, drafted=2, accepted=1, tokens=2)
    wait_until(lambda: fake.attempts >= 2)
    assert tracker.run_id is None
    fake.down = False
    wait_until(lambda: fake.values("requests") == [1])
    tracker.stop()


def test_unsent_points_are_bounded_and_losses_counted_and_told_once(fake, config, caplog):
    fake.down = True
    tracker = ServingTracker(every(config, 60), connect=fake.connect, max_unsent_points=10)
    for version in range(1, 31):
        tracker.curves.mark_swap(version, reason="test")
    assert (tracker.curves.unsent, tracker.curves.dropped) == (10, 20)
    fake.down = False
    tracker.start()
    tracker.stop()
    assert fake.values("draft_version")[-1] == 30
    assert len(fake.values("draft_version")) == 20  # two values a swap
    assert sum("dropped" in record.message for record in caplog.records) == 1


def test_counting_does_not_wait_for_a_store_that_hangs(fake, config):
    free = threading.Event()
    sending = threading.Event()

    def hang(run_id, metrics=(), params=()):
        sending.set()
        free.wait(10)

    fake.log_batch = hang
    tracker = ServingTracker(config, connect=fake.connect)
    tracker.start()
    tracker.curves.count(rounds=1, drafted=1, tokens=1)
    assert sending.wait(5)
    started = time.perf_counter()
    for _ in range(1000):
        tracker.curves.count(domain="math", rounds=1, drafted=3, accepted=1, tokens=2)
    tracker.curves.mark_swap(1, reason="test")
    tracker.stop(patience=0.1)
    assert time.perf_counter() - started < 2
    free.set()


def test_a_store_that_hangs_makes_no_point_late(fake, config):
    free = threading.Event()
    real = fake.log_batch

    def hang(run_id, metrics=(), params=()):
        free.wait(10)
        real(run_id, metrics, params)

    fake.log_batch = hang
    tracker = ServingTracker(config, connect=fake.connect)
    tracker.start()
    for _ in range(4):
        tracker.curves.count(requests=1, rounds=1, drafted=1, tokens=1)
        time.sleep(0.1)
    released = time.time()
    free.set()
    tracker.stop()
    assert fake.values("requests") == [1, 2, 3, 4]
    assert all(metric.timestamp / 1000 < released - 0.02 for metric in fake.metrics)


def test_counts_from_many_threads_add_up(fake, config):
    tracker = ServingTracker(config, connect=fake.connect)
    tracker.start()
    counters = [
        threading.Thread(target=lambda: [tracker.curves.count(requests=1, tokens=1) for _ in range(2000)])
        for _ in range(4)
    ]
    for counter in counters:
        counter.start()
    for counter in counters:
        counter.join()
    tracker.stop()
    assert fake.values("requests")[-1] == 8000


def test_any_domain_makes_a_name_that_mlflow_takes_and_their_number_is_bounded(store_config):
    tracker = ServingTracker(every(store_config, 60))
    tracker.start()
    for domain in ["", "..", "a/../b", "Größe ☃", "x" * 400, *(f"d{i}" for i in range(2 * MAX_DOMAINS))]:
        tracker.curves.count(domain=domain, rounds=1, drafted=2, accepted=1, tokens=2)
    tracker.stop()
    metrics = open_client(store_config).get_run(tracker.run_id).data.metrics
    names = [name for name in metrics if name.startswith("acceptance_rate/")]
    assert len(names) == MAX_DOMAINS + 1
    assert "acceptance_rate/other" in names


def published(config: HotdraftConfig, folder: Path) -> tuple[int, str]:
    """A version in the registry, and the run that trained it."""
    client = open_client(config)
    run_id = client.create_run(experiment_id(client, config, config.tracking.training_experiment)).info.run_id
    folder.mkdir()
    (folder / "weights").write_text("w")
    return AdapterRegistry(config).publish(folder, run_id=run_id, tags={}), run_id


def test_run_in_a_real_store_links_versions_to_their_training_runs(store_config, tmp_path):
    client: MlflowClient = open_client(store_config)
    version, run_id = published(store_config, tmp_path / "adapter")
    before = time.time()
    tracker = ServingTracker(every(store_config, 60))
    tracker.start()
    tracker.curves.count(requests=3, rounds=3, drafted=9, accepted=3, tokens=6)
    tracker.curves.mark_swap(version, reason="promoted")
    time.sleep(0.01)  # MLflow's clock ticks in milliseconds
    tracker.curves.mark_swap(0, reason="rolled back")
    tracker.stop()
    run = client.get_run(tracker.run_id)
    assert run.info.status == "FINISHED"
    assert before <= run.info.start_time / 1000 + 0.001 <= time.time()
    assert client.get_experiment(run.info.experiment_id).name == store_config.tracking.serving_experiment
    assert run.data.metrics["acceptance_rate"] == pytest.approx(1 / 3)
    curve = client.get_metric_history(tracker.run_id, "draft_version")
    assert [point.value for point in sorted(curve, key=lambda point: point.timestamp)][-1] == 0
    note = run.data.tags["mlflow.note.content"]
    training = client.get_run(run_id).info.experiment_id
    assert f"#/experiments/{training}/runs/{run_id}" in note
    assert "| 3 | the draft as it is | rolled back | no adapter |" in note
    assert run.data.params["target"] == "tiny"
    assert run.data.params["max_k"] == "8"
    assert run.data.tags["mlflow.source.name"] == "hotdraft serve"
    page = f"/#/experiments/{run.info.experiment_id}/runs/{tracker.run_id}/model-metrics"
    assert curves_page(store_config) == page


def test_what_a_version_served_is_told_when_it_is_swapped_out_and_at_the_end(store_config, tmp_path):
    version, _ = published(store_config, tmp_path / "adapter")
    registry = AdapterRegistry(store_config)
    tracker = ServingTracker(every(store_config, 0.05))
    tracker.start()
    one = {"domain": "sql", "drafted": 10, "examined": 8, "accepted": 6}

    def serve() -> None:
        tracker.curves.count(requests=1, rounds=4, drafted=10, accepted=6, tokens=10)
        tracker.curves.served(version, **one)

    tracker.curves.mark_swap(version, reason="promotion")
    client = open_client(store_config)
    wait_until(lambda: tracker.run_id and "hotdraft.draft_version" in client.get_run(tracker.run_id).data.tags)
    serve()
    time.sleep(0.3)
    assert registry.version(version).served is None, "not at every point, `served_seconds` are not over"
    tracker.curves.mark_swap(0, reason="rollback")
    wait_until(lambda: registry.version(version).served)
    assert registry.version(version).served.requests == 1
    tracker.curves.mark_swap(version, reason="promotion")
    serve()
    tracker.stop()
    found = registry.version(version)
    assert (found.served.requests, found.served.acceptance_rate) == (2, 0.6)
    assert found.served.by_domain["sql"].acceptance_of_examined == 0.75
    assert found.tags["served_requests"] == "2"

    again = ServingTracker(every(store_config, 60))
    again.start()
    again.curves.mark_swap(version, reason="startup")
    again.curves.served(version, **one)
    again.stop()
    assert again.run_id != tracker.run_id
    assert registry.version(version).served.requests == 3, "a server that starts again adds to what was served"


def test_what_was_served_during_an_outage_is_told_after_it(fake, config):
    told: dict[str, str] = {}
    version = type("Version", (), {"tags": told, "run_id": None})
    fake.get_model_version = lambda name, number: version
    fake.set_model_version_tag = lambda name, number, key, value: told.update({key: value})
    fake.update_model_version = lambda name, number, description: told.update(description=description)
    fake.down = True
    tracker = ServingTracker(config, connect=fake.connect)
    tracker.start()
    tracker.curves.mark_swap(3, reason="promotion")
    for _ in range(5):
        tracker.curves.served(3, domain="sql", drafted=10, examined=8, accepted=6)
    wait_until(lambda: fake.attempts >= 2)
    assert not told
    fake.down = False
    tracker.stop()
    assert told["served_requests"] == "5"
    assert told["served_acceptance_rate"] == "0.6"
