"""What somebody deletes in MLflow's pages is there again when it is needed, and nothing counts twice."""

from contextlib import suppress
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.store.connection import create_run, experiment_id, open_client
from hotdraft.pipeline.store.errors import RegistryError
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.pipeline.store.tracking import ServingTracker


@pytest.fixture
def client(store_config: HotdraftConfig) -> MlflowClient:
    return open_client(store_config)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "weights").write_text("w")
    return folder


def training_run(client: MlflowClient, config: HotdraftConfig) -> str:
    return create_run(client, experiment_id(client, config, config.tracking.training_experiment), "r", "test")


def test_runs_go_on_in_an_experiment_that_was_deleted(store_config, client):
    first = experiment_id(client, store_config, store_config.tracking.training_experiment)
    client.delete_experiment(first)
    run = client.get_run(training_run(client, store_config))
    assert (run.info.experiment_id, run.info.lifecycle_stage) == (first, "active")


def test_versions_are_published_to_a_registered_model_that_was_deleted(store_config, client, adapter):
    registry = AdapterRegistry(store_config)
    run_id = training_run(client, store_config)
    registry.promote(registry.publish(adapter, run_id=run_id, tags={}), reason="gate", by_hand=True)
    client.delete_registered_model(store_config.tracking.registered_model)
    assert registry.champion() == 0
    assert not registry.is_pinned()
    client.delete_registered_model(store_config.tracking.registered_model)
    version = registry.publish(adapter, run_id=run_id, tags={})
    registry.promote(version, reason="gate")
    assert registry.champion() == version


def test_curves_go_on_in_another_run_where_theirs_was_deleted(store_config, client, adapter):
    registry = AdapterRegistry(store_config)
    version = registry.publish(adapter, run_id=training_run(client, store_config), tags={})
    tracker = ServingTracker(store_config)

    def serve() -> None:
        tracker.curves.count(requests=1, rounds=1, drafted=4, accepted=1, tokens=2)
        tracker.curves.served(version, domain="sql", drafted=4, examined=4, accepted=1)
        tracker.curves.end_interval()
        tracker._try_to_send()

    tracker.curves.mark_swap(version, reason="startup")
    serve()
    deleted = tracker.run_id
    client.delete_run(deleted)
    serve()
    assert tracker.run_id == deleted
    assert tracker.curves.unsent == 1
    serve()
    assert tracker.curves.unsent == 0
    run = client.get_run(tracker.run_id)
    assert run.info.lifecycle_stage == "active"
    assert len(client.get_metric_history(tracker.run_id, "requests")) == 2
    assert (run.data.params["target"], run.data.tags["hotdraft.draft_version"]) == ("tiny", str(version))
    assert registry.version(version).served.requests == 3


def files(registry: AdapterRegistry) -> list[int]:
    """Versions whose files can be had."""
    found = []
    for version in registry.versions():
        with suppress(RegistryError):
            registry.download(version.version)
            found.append(version.version)
    return found


def test_of_refused_versions_the_newest_keep_their_files_and_all_stay_listed(store_config, client, adapter):
    tracking = store_config.tracking.model_copy(update={"keep_refused": 2})
    registry = AdapterRegistry(store_config.model_copy(update={"tracking": tracking}))
    run_id = training_run(client, store_config)
    for _ in range(7):
        registry.publish(adapter, run_id=run_id, tags={})
    for version in (1, 3, 4, 6):
        registry.reject(version, reason="worse")
    registry.promote(2, reason="gate")
    registry.promote(1, reason="by hand", by_hand=True)
    registry.unpin()
    registry.promote(5, reason="gate")
    registry.forget_refused()
    assert files(registry) == [7, 6, 5, 4, 2, 1], "1 has served"
    assert [version.version for version in registry.versions()] == [7, 6, 5, 4, 3, 2, 1]
    for call in (lambda: registry.promote(3, reason="by hand", by_hand=True), lambda: registry.download(3)):
        with pytest.raises(RegistryError, match="files of version 3 were deleted: those of the newest 2 refused"):
            call()
    registry.reject(7, reason="worse")
    registry.forget_refused()
    assert files(registry) == [7, 6, 5, 2, 1]
    AdapterRegistry(
        store_config.model_copy(update={"tracking": tracking.model_copy(update={"keep_refused": None})})
    ).forget_refused()
    assert files(registry) == [7, 6, 5, 2, 1]


def test_what_is_stopped_while_it_deletes_refused_versions_goes_on_with_them(
    store_config, client, adapter, monkeypatch
):
    tracking = store_config.tracking.model_copy(update={"keep_refused": 0})
    registry = AdapterRegistry(store_config.model_copy(update={"tracking": tracking}))
    run_id = training_run(client, store_config)
    for _ in range(3):
        registry.reject(registry.publish(adapter, run_id=run_id, tags={}), reason="worse")
    delete, deleted = registry._delete_files, []

    def killed(version: ModelVersion) -> None:
        if deleted:
            raise KeyboardInterrupt
        delete(version)
        deleted.append(version)

    monkeypatch.setattr(registry, "_delete_files", killed)
    with pytest.raises(KeyboardInterrupt):
        registry.forget_refused()
    monkeypatch.undo()
    assert len(files(registry)) == 2
    registry.forget_refused()
    assert files(registry) == []


def test_files_that_a_version_shares_with_one_that_was_not_refused_stay(store_config, client, adapter):
    tracking = store_config.tracking.model_copy(update={"keep_refused": 0})
    registry = AdapterRegistry(store_config.model_copy(update={"tracking": tracking}))
    run_id = training_run(client, store_config)
    version = registry.publish(adapter, run_id=run_id, tags={})
    source = client.get_model_version(tracking.registered_model, str(version)).source
    twin = client.create_model_version(tracking.registered_model, source, run_id).version
    registry.reject(int(twin), reason="once more")
    registry.forget_refused()
    assert files(registry) == [2, 1]
    registry.reject(version, reason="worse")
    registry.forget_refused()
    assert files(registry) == []
