"""Versions in the registry: published, found, fetched."""

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.store import fetched
from hotdraft.pipeline.store.connection import (
    StoreError,
    create_run,
    experiment_id,
    open_client,
    registered_model,
)
from hotdraft.pipeline.store.errors import RegistryError
from hotdraft.pipeline.store.registry import AdapterRegistry

REPOSITORY = Path(__file__).parents[4]


def test_published_version_is_a_complete_candidate(publisher):
    assert publisher.registry.published_by(publisher.run_id) is None
    version = publisher.publish("first")
    found = publisher.registry.version(version)
    assert (found.status, found.aliases, found.run_id) == ("candidate", ["candidate"], publisher.run_id)
    assert found.tags["parent"] == "0"
    assert publisher.registry.champion() == 0
    stored = publisher.registry.download(version)
    assert stored.is_relative_to(publisher.config.artifact_root)
    assert (stored / "adapter_model.safetensors").read_text() == "first"


def test_versions_of_one_run_keep_their_own_files(publisher):
    first, second = publisher.publish("first"), publisher.publish("second")
    contents = [
        (publisher.registry.download(version) / "adapter_model.safetensors").read_text()
        for version in (first, second)
    ]
    assert contents == ["first", "second"]
    assert [version.version for version in publisher.registry.versions()] == [second, first]
    assert publisher.registry.version(first).aliases == []  # `candidate` is the newest


def asked_twice(monkeypatch, method):
    """MLflow's client asks again where an answer is late, and tells the last one."""
    real = getattr(MlflowClient, method)
    monkeypatch.setattr(MlflowClient, method, lambda *args, **keys: [real(*args, **keys) for _ in range(2)][-1])


def test_of_versions_that_a_late_answer_doubled_the_first_is_the_candidate_and_the_other_is_refused(
    publisher, monkeypatch
):
    earlier = publisher.publish("earlier")
    asked_twice(monkeypatch, "create_model_version")
    version = publisher.publish("first")
    kept, twin = publisher.registry.version(version), publisher.registry.version(version + 1)
    assert (kept.status, kept.aliases) == ("candidate", ["candidate"])
    assert (twin.status, twin.aliases) == ("rejected", [])
    assert twin.tags["reason"] == "version 2 once more: an answer of MLflow was late"
    assert publisher.registry.published_by(publisher.run_id).version == version
    assert publisher.registry.version(earlier).status == "candidate"


def test_of_runs_that_a_late_answer_doubled_one_is_under_way(store_config, monkeypatch):
    asked_twice(monkeypatch, "create_run")
    client = open_client(store_config)
    experiment = experiment_id(client, store_config, "e")
    runs = [create_run(client, experiment, "r", "command") for _ in range(2)]
    found = {run.info.run_id: run.info.status for run in client.search_runs([experiment])}
    assert len(found) == 4
    assert {run_id for run_id, status in found.items() if status == "RUNNING"} == set(runs)


def test_what_another_process_was_first_to_make_is_taken_and_what_cannot_be_made_is_told(store_config, monkeypatch):
    client = open_client(store_config)
    with monkeypatch.context() as first:
        for method in ("create_experiment", "create_registered_model"):
            asked_twice(first, method)
        made = experiment_id(client, store_config, "e")
        assert registered_model(client, "m").name == "m"
    assert client.get_experiment_by_name("e").experiment_id == made == experiment_id(client, store_config, "e")
    for method in ("create_experiment", "create_registered_model"):
        monkeypatch.setattr(MlflowClient, method, Mock(side_effect=MlflowException("no route")))
    for make in (lambda: experiment_id(client, store_config, "other"), lambda: registered_model(client, "other")):
        with pytest.raises(MlflowException, match="no route"):
            make()


def test_unknown_versions_and_lost_files_are_clear_errors(publisher, tmp_path):
    registry = publisher.registry
    for call in (
        lambda: registry.version(9),
        lambda: registry.download(9),
        lambda: registry.promote(9, reason=""),
        lambda: registry.reject(9, reason=""),
    ):
        with pytest.raises(RegistryError, match="no version 9 of hotdraft-draft"):
            call()
    (tmp_path / "empty").mkdir()
    with pytest.raises(RegistryError, match="empty"):
        registry.publish(tmp_path / "empty", run_id=publisher.run_id, tags={})
    version = publisher.publish()
    stored = registry.download(version)
    stored.rename(tmp_path / "moved")
    with pytest.raises(RegistryError, match=f"files of version {version} cannot be had"):
        registry.download(version)


def test_files_that_a_remote_store_does_not_give_now_may_come_later(publisher, monkeypatch):
    version = publisher.publish()
    monkeypatch.setattr(HotdraftConfig, "has_remote_store", True)
    with monkeypatch.context() as outage:
        outage.setattr(fetched, "download_artifacts", Mock(side_effect=OSError("no space left")))
        with pytest.raises(StoreError, match="no space left"):
            publisher.registry.download(version)
    folder = publisher.registry.download(version)
    assert folder.parent == publisher.config.run_dir / "adapters"
    assert (folder / "adapter_model.safetensors").is_file()
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_sources_that_end_alike_are_fetched_apart_and_what_is_spoiled_anew(publisher, monkeypatch, tmp_path):
    registry, name = publisher.registry, publisher.config.tracking.registered_model
    assert registry.champion() == 0
    versions = []
    for owner in ("mine", "yours"):
        source = tmp_path / owner / "adapter"
        source.mkdir(parents=True)
        (source / "weights").write_text(owner)
        versions.append(int(publisher.client.create_model_version(name, str(source)).version))
        registry.fetched.discard(registry.download(versions[-1]))
        assert (source / "weights").exists(), "a local store's files are no copies"
    monkeypatch.setattr(HotdraftConfig, "has_remote_store", True)
    kept = [registry.download(version) for version in versions]
    assert [(folder / "weights").read_text() for folder in kept] == ["mine", "yours"]
    (kept[0] / "weights").write_text("spoiled")
    assert (registry.download(versions[0]) / "weights").read_text() == "spoiled", "it is asked once"
    registry.fetched.discard(kept[0])
    assert (registry.download(versions[0]) / "weights").read_text() == "mine"


@pytest.mark.parametrize("previous", ["abc", "-1", "", "999", str(10**30), "1.5"])
def test_where_the_way_back_is_broken_the_draft_itself_is_left(publisher, previous):
    version = publisher.publish()
    publisher.registry.promote(version, reason="gate")
    name = publisher.config.tracking.registered_model
    publisher.client.set_model_version_tag(name, str(version), "previous_champion", previous)
    assert publisher.registry.rollback(reason="fell") == 0
    assert publisher.registry.champion() == 0


def test_a_version_that_others_made_is_listed_promoted_and_rolled_back(publisher):
    registry, first = publisher.registry, publisher.publish()
    foreign = int(publisher.client.create_model_version(publisher.config.tracking.registered_model, "/x").version)
    assert publisher.statuses() == {first: "candidate", foreign: "unknown"}
    assert registry.training_metrics(foreign) == {}
    for version in (foreign, first):
        registry.promote(version, reason="by hand")
    assert registry.rollback(reason="fell") == foreign
    assert registry.refused() == {first}


def test_refused_versions_are_listed_from_any_on(publisher):
    registry, versions = publisher.registry, [publisher.publish() for _ in range(4)]
    for version in versions[:3]:
        registry.reject(version, reason="gate")
    assert registry.refused() == set(versions[:3])
    assert registry.refused(after=versions[0]) == set(versions[1:3])
    assert registry.refused(after=versions[2]) == set()


def test_training_metrics_are_those_of_the_run(publisher):
    publisher.client.log_metric(publisher.run_id, "gate/gain", 0.25)
    assert publisher.registry.training_metrics(publisher.publish()) == {"gate/gain": 0.25}


def test_another_process_sees_the_champion(publisher):
    version = publisher.publish()
    publisher.registry.promote(version, reason="gate")
    assert AdapterRegistry(publisher.config).champion() == version


FIRST_USE = """
import sys
from pathlib import Path
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.store.connection import experiment_id, open_client
from hotdraft.pipeline.store.registry import AdapterRegistry

config = HotdraftConfig(target="tiny", run_dir=Path(sys.argv[1]))
client = open_client(config)
run = client.create_run(experiment_id(client, config, "shared")).info.run_id
folder = Path(sys.argv[2])
folder.mkdir()
(folder / "weights").write_text(folder.name)
registry = AdapterRegistry(config)
version = registry.publish(folder, run_id=run, tags={})
registry.promote(version, reason="race")
print(version)
"""


@pytest.mark.slow
def test_processes_may_create_the_store_at_once(tmp_path):
    run_dir = tmp_path / "run"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", FIRST_USE, str(run_dir), str(tmp_path / f"adapter-{i}")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )
        for i in range(3)
    ]
    ends = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], ends
    assert sorted(int(out) for out, _ in ends) == [1, 2, 3]
    assert not any("INFO" in error for _, error in ends), ends
    registry = AdapterRegistry(HotdraftConfig(target="tiny", run_dir=run_dir))
    statuses = [version.status for version in registry.versions()]
    assert sorted(statuses) == ["champion", "retired", "retired"]
    assert sorted(path.name for path in run_dir.iterdir()) == ["mlartifacts", "mlflow.db", "mlflow.db.lock"]
    assert not (tmp_path / "mlruns").exists()
    uri = f"sqlite:///{run_dir / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    assert sum(experiment.name == "shared" for experiment in client.search_experiments()) == 1
