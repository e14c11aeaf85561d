"""Spoiled versions become champion under traffic, one after the other, with a restart after each."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hotdraft.cli import app
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import fingerprint
from hotdraft.pipeline.store.adapter_version import CHAMPION
from hotdraft.pipeline.store.connection import experiment_id, open_client
from hotdraft.pipeline.store.lineage import Lineage
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.pipeline.store.served import Served
from hotdraft.pipeline.watch.trial import Trials
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.engine.load import build_engine
from hotdraft.serving.updates import adapter_sync
from hotdraft.serving.updates.acceptance_watch import AcceptanceWatch
from hotdraft.serving.updates.adapter_sync import AdapterSync
from hotdraft.serving.updates.hot_swap import HotSwapper
from hotdraft.serving.updates.last_served import LastServedFile
from tests.integration.adapters import write_adapter
from tests.scenarios.spoiled_adapters import ODD_TAGS, SPOILED_FILES, SPOILED_SOURCES
from tests.unit.serving.clients import ask, greedy, request

pytestmark = pytest.mark.slow

GOOD = 1
CASES = [*SPOILED_FILES, *SPOILED_SOURCES]
PROMPT, LENGTH = (1, 2, 3), 8


class Replica:
    """A server without its HTTP face."""

    def __init__(self, config: HotdraftConfig, draft_fingerprint: str) -> None:
        self.engine = build_engine(config, None)
        self.engine.start()
        registry = AdapterRegistry(config)
        watch = AcceptanceWatch(Trials(config, "here"), registry)
        swapper, last_served = HotSwapper(self.engine, draft_fingerprint), LastServedFile(config.run_dir)
        self.sync = AdapterSync(swapper, registry, last_served, watch)
        self.engine.listeners += [watch]
        self.sync.start()

    def stop(self) -> None:
        self.sync.stop()
        self.engine.stop()


class World:
    """One registry and run directory, and the replica that lives there; version 1 is good and serves."""

    def __init__(self, config: HotdraftConfig, folder: Path) -> None:
        assert config.draft is not None
        self.config, self.fingerprint = config, fingerprint(config.draft)
        self.registry, self.client = AdapterRegistry(config), open_client(config)
        self.run_id = self.client.create_run(experiment_id(self.client, config, "training")).info.run_id
        self.good = write_adapter(folder / "good", config.draft, scale=0.2)
        assert self.publish({}) == GOOD
        self.registry.promote(GOOD, reason="gate")
        self.replica = Replica(config, self.fingerprint)

    def publish(self, tags: dict[str, str]) -> int:
        return self.registry.publish(self.good, run_id=self.run_id, tags=tags)

    def spoiled(self, case: str) -> int:
        """A new version of the kind `case`, with odd tags."""
        tags = ODD_TAGS[CASES.index(case) % len(ODD_TAGS)]
        if case in SPOILED_SOURCES:
            name, source = self.config.tracking.registered_model, SPOILED_SOURCES[case]
            return int(self.client.create_model_version(name, source, tags=dict(tags)).version)
        version = self.publish(dict(tags))
        if not tags:
            self.client.delete_model_version_tag(self.config.tracking.registered_model, str(version), "status")
        SPOILED_FILES[case](self.registry.download(version))
        return version

    def make_champion(self, version: int, by_hand: bool) -> None:
        """As the trainer does, or as a person may in MLflow's pages."""
        if by_hand:
            self.client.set_registered_model_alias(self.config.tracking.registered_model, CHAMPION, str(version))
        else:
            self.registry.promote(version, reason="gate")

    def restart(self) -> None:
        self.replica.stop()
        self.replica = Replica(self.config, self.fingerprint)


@pytest.fixture(scope="module")
def world(
    tiny_target: str, tiny_draft: str, empty_mlflow_db: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapter_sync, "POLL_SECONDS", 0.01)
        patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        config = HotdraftConfig(
            target=tiny_target, draft=tiny_draft, dtype="float32", device="cpu", run_dir=folder / "run",
            engine={"k": 2, "num_slots": 3, "max_model_len": 128, "threads": 1},
        )  # fmt: skip
        config.run_dir.mkdir()
        shutil.copy(empty_mlflow_db, config.run_dir)
        world = World(config, folder)
        yield world
        world.replica.stop()


@pytest.fixture(scope="module")
def answer(tiny_target: str) -> list[int]:
    return greedy(tiny_target, PROMPT, LENGTH)


def serve_until(engine: Engine, answer: list[int], reached: Callable[[], bool]) -> None:
    """Requests without a pause; each must be answered right, and by the good version."""
    deadline, served = time.monotonic() + 30, 0
    while not reached() or not served:
        assert time.monotonic() < deadline, "it never came to that"
        clients = [ask(engine, request(f"r{served}-{n}", PROMPT, max_tokens=LENGTH)) for n in range(2)]
        for client in clients:
            assert client.wait().finish_reason == "length"
            assert client.ids == answer
            assert client.deltas[-1].stats.draft_version == GOOD
        served += 1


def test_there_are_enough_of_them():
    assert len(CASES) >= 81


@pytest.mark.parametrize("case", CASES)
def test_a_spoiled_champion_is_served_by_nobody_and_harms_nobody(world: World, case: str, answer: list[int]):
    version = world.spoiled(case)
    replica = world.replica
    assert replica.engine.draft_version == GOOD
    world.make_champion(version, by_hand=CASES.index(case) % 2 == 0)
    serve_until(replica.engine, answer, lambda: version in replica.sync.unusable)

    world.restart()
    restarted = world.replica
    assert restarted.engine.draft_version == GOOD, "before the first request"
    assert version in restarted.sync.unusable
    serve_until(restarted.engine, answer, lambda: True)
    assert world.registry.champion() == version, "moved by nobody"
    assert not replica.sync.errors + restarted.sync.errors

    world.registry.promote(GOOD, reason="by a person")
    serve_until(restarted.engine, answer, lambda: not restarted.sync.unusable)


def test_all_of_them_are_listed_and_told_of(world: World, tmp_path: Path):
    versions = [GOOD] if world.registry.champion() == GOOD else []
    versions += [version_of(world, tags, number) for number, tags in enumerate(ODD_TAGS)]
    path = tmp_path / "config.yaml"
    path.write_text(world.config.model_dump_json(include={"target", "draft", "run_dir"}))
    found = {version.version: version for version in world.registry.versions()}
    for arguments in (["list"], ["list", "--json"], *(["show", str(version)] for version in versions)):
        result = CliRunner().invoke(app, ["adapters", *arguments, "--config", str(path)])
        assert result.exit_code == 0, (arguments, result.output, result.exception)
    assert found[versions[-len(ODD_TAGS)]].status == "unknown"
    for version in versions:
        Lineage(world.client, world.config).record_served(version, world.run_id, Served(1, 2, 2, 1, 1.0, 2.0))


def version_of(world: World, tags: Any, number: int) -> int:
    name = world.config.tracking.registered_model
    return int(world.client.create_model_version(name, f"/nowhere/{number}", tags=dict(tags)).version)


@pytest.mark.parametrize("tags", ODD_TAGS)
def test_a_good_adapter_with_odd_tags_serves(world: World, tags: dict[str, str]):
    name = world.config.tracking.registered_model
    source = world.client.get_model_version(name, str(GOOD)).source
    version = int(world.client.create_model_version(name, source, tags=dict(tags)).version)
    world.make_champion(version, by_hand=True)
    world.restart()
    assert world.replica.engine.draft_version == version
    assert world.registry.rollback(reason="by a person") == 0, "its trace ends"
    world.registry.promote(GOOD, reason="by a person")
    world.restart()
    assert world.replica.engine.draft_version == GOOD
    assert not world.replica.sync.errors


def test_a_version_without_a_run_has_no_training_metrics(world: World):
    version = version_of(world, {}, 99)
    assert world.registry.training_metrics(version) == {}
