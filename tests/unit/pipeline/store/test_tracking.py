"""The curves of a server, as MLflow is told them."""

import threading
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.store.connection import experiment_id, log_params, open_client
from hotdraft.pipeline.store.curves import POINTS_IN_HISTORY
from hotdraft.pipeline.store.domains import MAX_DOMAINS
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.pipeline.store.tracking import ServingTracker, curves_page
from tests.unit.pipeline.store.fake_client import every, wait_until


def test_points_follow_their_definitions(fake, config):
    tracker = ServingTracker(every(config, 60), connect=fake.connect)
    tracker.start()
    tracker.curves.count(domain="math", rounds=4, drafted=12, accepted=9, accepted_guesses=3, tokens=16)
    tracker.curves.count(domain="sql", rounds=2, drafted=6, accepted=0, accepted_guesses=1, tokens=3)
    tracker.curves.count(domain="sql", requests=2)
    tracker.stop()
    assert fake.values("acceptance_rate") == [9 / 18]
    assert fake.values("acceptance_rate/math") == [9 / 12]
    assert fake.values("acceptance_rate/sql") == [0]
    assert fake.values("mean_acceptance_length") == [1 + (9 + 4) / 6], "guesses make rounds longer"
    assert fake.values("requests") == [2]
    assert fake.values("draft_version") == [0]
    assert fake.values("tokens_per_second")[0] > 19
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
    assert fake.ended, "though there was nothing left to send"


def test_a_server_that_answered_nothing_has_no_run(fake, config):
    tracker = ServingTracker(config, connect=fake.connect)
    tracker.start()
    time.sleep(0.1)
    tracker.stop()
    assert (tracker.run_id, fake.attempts) == (None, 0)


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
    assert curves_page(store_config) is None
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


def test_a_run_is_told_any_number_of_settings_by_their_dotted_keys_and_again_if_need_be(store_config):
    client = open_client(store_config)
    run_id = client.create_run(experiment_id(client, store_config, "e")).info.run_id
    settings = {"lora": {"rank": 4, "deeper": {"alpha": 8}}, "many": {f"key-{i}": i for i in range(250)}}
    for _ in range(2):
        log_params(client, run_id, settings, target="tiny")
    params = client.get_run(run_id).data.params
    assert (params["lora.rank"], params["lora.deeper.alpha"], params["target"]) == ("4", "8", "tiny")
    assert {params[f"many.key-{i}"] for i in range(250)} == {str(i) for i in range(250)}
    assert len(params) == 253


def test_the_run_of_a_server_that_was_killed_is_ended_by_the_next_one(store_config):
    killed, ended, last = (ServingTracker(every(store_config, 60)) for _ in range(3))
    killed.curves.count(requests=1, rounds=1, tokens=2)
    killed.curves.end_interval()
    killed._try_to_send()
    for tracker in (ended, last):
        tracker.start()
        tracker.curves.count(requests=1, rounds=1, tokens=2)
        tracker.stop()
    client = open_client(store_config)
    statuses = [client.get_run(tracker.run_id).info.status for tracker in (killed, ended, last)]
    assert statuses == ["KILLED", "FINISHED", "FINISHED"]


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
