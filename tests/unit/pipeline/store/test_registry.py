import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.store import fetched
from hotdraft.pipeline.store.connection import StoreError, experiment_id, open_client
from hotdraft.pipeline.store.errors import ChampionMovedError, ChampionPinnedError, RegistryError
from hotdraft.pipeline.store.pin import PIN
from hotdraft.pipeline.store.registry import AdapterRegistry

REPOSITORY = Path(__file__).parents[4]


class Publisher:
    """A trainer's part: a training run, and adapter folders of one small file."""

    def __init__(self, config: HotdraftConfig, folder: Path) -> None:
        self.config = config
        self.registry = AdapterRegistry(config)
        client = open_client(config)
        experiment = experiment_id(client, config, config.tracking.training_experiment)
        self.client, self.run_id = client, client.create_run(experiment).info.run_id
        self.folder = folder
        self.folder.mkdir()

    def publish(self, content: str = "weights") -> int:
        (self.folder / "adapter_model.safetensors").write_text(content)
        return self.registry.publish(self.folder, run_id=self.run_id, tags={"parent": "0", "gain": "0.1"})

    def statuses(self) -> dict[int, str]:
        return {version.version: version.status for version in self.registry.versions()}


@pytest.fixture
def publisher(store_config: HotdraftConfig, tmp_path: Path) -> Publisher:
    return Publisher(store_config, tmp_path / "adapter")


def test_published_version_is_a_complete_candidate(publisher):
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


def test_promotion_retires_the_one_before(publisher):
    first, second = publisher.publish(), publisher.publish()
    publisher.registry.promote(first, reason="gate")
    assert publisher.registry.champion() == first
    publisher.registry.promote(second, reason="better")
    assert publisher.registry.champion() == second
    assert publisher.statuses() == {first: "retired", second: "champion"}
    assert publisher.registry.version(second).aliases == ["champion"]
    assert publisher.registry.version(second).tags["reason"] == "better"


def test_promoting_the_champion_again_changes_nothing(publisher):
    first, second = publisher.publish(), publisher.publish()
    for version in (first, second, second):
        publisher.registry.promote(version, reason="gate")
    assert publisher.registry.rollback(reason="fell") == first


def test_a_promotion_instead_of_a_champion_that_has_moved_changes_nothing(publisher):
    registry = publisher.registry
    first, second, third = (publisher.publish() for _ in range(3))
    registry.promote(first, reason="gate", instead_of=0)
    registry.promote(second, reason="gate", instead_of=first)
    assert registry.rollback(reason="fell") == first
    for judged_against in (0, second):
        with pytest.raises(ChampionMovedError, match=f"{judged_against} is not the champion any more, {first} is"):
            registry.promote(third, reason="gate", instead_of=judged_against)
    assert publisher.statuses() == {first: "champion", second: "rolled_back", third: "candidate"}
    registry.promote(third, reason="by hand")
    assert registry.champion() == third, "a person's word is unconditional"


def test_what_a_person_decided_is_moved_by_a_person_alone_until_it_is_unpinned(publisher):
    registry = publisher.registry
    first, second, third = (publisher.publish() for _ in range(3))
    registry.promote(first, reason="gate")
    registry.promote(second, reason="", by_hand=True)
    assert [version.version for version in AdapterRegistry(publisher.config).versions() if version.pinned] == [
        second
    ]
    with pytest.raises(ChampionPinnedError, match="version 2 is pinned by hand"):
        registry.promote(third, reason="gate", instead_of=second)
    with pytest.raises(ChampionPinnedError, match="version 2 is pinned by hand"):
        registry.rollback(reason="fell", version=second)
    assert registry.rollback(reason="bad at SQL", by_hand=True) == first
    assert registry.version(first).pinned
    assert registry.rollback(reason="", by_hand=True) == 0
    assert registry.is_pinned(), "that none serves is a decision too"
    with pytest.raises(ChampionPinnedError, match="serving without an adapter is pinned by hand"):
        registry.promote(third, reason="gate")
    registry.unpin()
    registry.unpin()
    registry.promote(third, reason="gate")
    assert (registry.champion(), registry.is_pinned()) == (third, False)


def test_what_a_person_says_is_kept_beside_what_the_gate_said(publisher):
    registry = publisher.registry
    first, second = publisher.publish(), publisher.publish()
    registry.promote(first, reason="gain 0.1")
    registry.reject(second, reason="gain too small")
    registry.promote(second, reason="good at SQL", by_hand=True)
    assert words(registry, second) == ("gain too small", "promoted: good at SQL")
    registry.rollback(reason="", by_hand=True)
    assert words(registry, second) == ("gain too small", "rolled back")
    assert words(registry, first) == ("gain 0.1", "returned to: version 2 was rolled back")


def words(registry, version):
    tags = registry.version(version).tags
    return tags["reason"], tags["by_hand"]


def test_a_pin_whose_writer_died_comes_to_nothing(publisher):
    registry = publisher.registry
    first, second = publisher.publish(), publisher.publish()
    registry.promote(first, reason="gate")
    publisher.registry._client.set_registered_model_tag(
        publisher.config.tracking.registered_model, PIN, str(second)
    )
    registry.promote(second, reason="gate")
    assert not registry.is_pinned()


def test_the_champion_can_be_pinned_where_it_is(publisher):
    version = publisher.publish()
    publisher.registry.promote(version, reason="gain 0.1")
    publisher.registry.promote(version, reason="", by_hand=True)
    assert publisher.registry.version(version).pinned
    publisher.registry.unpin()
    assert publisher.registry.rollback(reason="fell") == 0, "it is not its own predecessor"


def test_a_pin_holds_for_the_champion_that_it_was_written_for(publisher, monkeypatch):
    """The writer dies between the pin and the alias, or somebody moves the alias in MLflow's own pages."""
    registry = publisher.registry
    first, second = publisher.publish(), publisher.publish()
    registry.promote(first, reason="gate")
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "set_registered_model_alias", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            registry.promote(second, reason="", by_hand=True)
    assert (registry.champion(), registry.is_pinned()) == (first, False)
    registry.promote(first, reason="", by_hand=True)
    publisher.client.set_registered_model_alias("hotdraft-draft", "champion", str(second))
    assert not registry.is_pinned()


def test_rejected_version_stops_being_the_candidate(publisher):
    version = publisher.publish()
    publisher.registry.reject(version, reason="gain too small")
    found = publisher.registry.version(version)
    assert (found.status, found.aliases, found.tags["reason"]) == ("rejected", [], "gain too small")
    assert publisher.registry.champion() == 0


def test_champion_cannot_be_rejected(publisher):
    version = publisher.publish()
    publisher.registry.promote(version, reason="gate")
    with pytest.raises(RegistryError, match="roll it back"):
        publisher.registry.reject(version, reason="no")
    assert publisher.registry.champion() == version


def test_rollback_passes_over_what_was_rolled_back(publisher):
    registry = publisher.registry
    first, second, third = (publisher.publish() for _ in range(3))
    registry.promote(first, reason="gate")
    registry.promote(second, reason="gate")
    assert registry.rollback(reason="fell") == first
    registry.promote(third, reason="gate")
    assert registry.rollback(reason="fell") == first
    assert publisher.statuses() == {first: "champion", second: "rolled_back", third: "rolled_back"}
    assert registry.rollback(reason="fell too") == 0
    assert registry.champion() == 0
    with pytest.raises(RegistryError, match="no champion"):
        registry.rollback(reason="again")


def test_rollback_ends_when_promotions_went_in_a_circle(publisher):
    registry = publisher.registry
    first, second = publisher.publish(), publisher.publish()
    for version in (first, second, first):
        registry.promote(version, reason="by hand")
    assert registry.rollback(reason="fell") == second
    assert registry.rollback(reason="fell") == 0


def test_a_version_that_was_promoted_again_hides_no_champion_before_it(publisher):
    registry, (three, five, seven) = publisher.registry, [publisher.publish() for _ in range(3)]
    for version in (three, five, seven, five):
        registry.promote(version, reason="by hand", by_hand=True)
    assert list(registry.champions_before(five)) == [seven, three]
    assert [registry.rollback(reason="fell", by_hand=True) for _ in range(3)] == [seven, three, 0]


def test_rollback_of_a_version_that_no_longer_serves_is_refused(publisher):
    first, second = publisher.publish(), publisher.publish()
    publisher.registry.promote(first, reason="gate")
    publisher.registry.promote(second, reason="gate")
    with pytest.raises(RegistryError, match=f"version {second} is"):
        publisher.registry.rollback(reason="late verdict", version=first)
    assert publisher.registry.champion() == second


class Killed(BaseException):
    pass


@pytest.mark.parametrize("writes", range(1, 7))
def test_a_crash_anywhere_in_a_promotion_leaves_a_champion_and_a_way_back(publisher, monkeypatch, writes):
    """After `writes` changes of the store the writer dies; then the promotion is tried again."""
    registry = publisher.registry
    first, second = publisher.publish(), publisher.publish()
    registry.promote(first, reason="gate")
    left = writes

    def dying(write):
        def call(*args, **kwargs):
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return write(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for name in ("set_model_version_tag", "set_registered_model_alias", "delete_registered_model_alias"):
            patch.setattr(registry._client, name, dying(getattr(registry._client, name)))
        try:
            registry.promote(second, reason="better")
        except Killed:
            pass
        else:
            assert writes == 6, "the last case is the promotion that lives"
    statuses = publisher.statuses()
    champion = registry.champion()
    assert champion in (first, second)
    assert [version for version, status in statuses.items() if status == "champion"] == [champion]
    registry.promote(second, reason="better")
    assert registry.champion() == second
    assert registry.rollback(reason="fell") == first


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
