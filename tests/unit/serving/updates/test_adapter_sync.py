"""The thread that follows the champion, over a real engine and a registry that obeys the test."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from mlflow.exceptions import MlflowException

from hotdraft.pipeline.models.adapter_folder import AdapterError
from hotdraft.pipeline.store.adapter_version import RETIRED, ROLLED_BACK, AdapterVersion
from hotdraft.pipeline.store.connection import StoreError
from hotdraft.pipeline.store.errors import RegistryError
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.metrics.listener import ServingMetrics
from hotdraft.serving.metrics.state_metrics import Sources
from hotdraft.serving.updates import adapter_sync, champion
from hotdraft.serving.updates.acceptance_watch import AcceptanceWatch
from hotdraft.serving.updates.adapter_sync import AdapterSync
from hotdraft.serving.updates.hot_swap import HotSwapper, StagedDraft
from hotdraft.serving.updates.last_served import LastServed, LastServedFile


class Registry:
    """What `AdapterSync` needs of an `AdapterRegistry`, in memory."""

    def __init__(self) -> None:
        self.champions: list[int] = []
        self.rolled_back: dict[int, str] = {}
        self.down = False
        self.keeps_files_back = False
        self.fetched = Mock()
        self.odd: Exception | None = None
        self.rejected: set[int] = set()
        self.asked_after: list[int] = []

    def promote(self, version: int) -> None:
        self.champions.append(version)

    def champion(self) -> int:
        self._reach()
        return self.champions[-1] if self.champions else 0

    def rollback(self, *, reason: str, version: int | None = None) -> int:
        self._reach()
        if not self.champions or version not in (None, self.champions[-1]):
            raise RegistryError(f"version {version} is not the champion")
        self.rolled_back[self.champions.pop()] = reason
        return self.champion()

    def champions_before(self, version: int) -> Iterator[int]:
        self._reach()
        yield from reversed(self.champions[: self.champions.index(version)])

    def version(self, version: int) -> AdapterVersion:
        self._reach()
        status = ROLLED_BACK if version in self.rolled_back else RETIRED
        return AdapterVersion(version, status, [], "run", 0.0, {}, None, pinned=False)

    def refused(self, *, after: int = 0) -> set[int]:
        self._reach()
        if self.odd is not None:
            raise self.odd
        self.asked_after.append(after)
        return {version for version in {*self.rolled_back, *self.rejected} if version > after}

    def download(self, version: int, into: Path | None = None) -> Path:
        self._reach()
        if self.keeps_files_back:
            raise StoreError("s3://us:secret@store is away")
        return Path(f"/adapters/{version}")

    def _reach(self) -> None:
        if self.down:
            raise MlflowException("no route to the store")


class Swapper(HotSwapper):
    """Stages the draft itself as every version but those in `broken`: what is swapped is tested elsewhere."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, "fingerprint")
        self.broken: dict[int, Exception] = {}
        self.staged: list[int] = []

    def stage(self, version: int, folder: Path | None) -> StagedDraft:
        self.staged.append(version)
        if version in self.broken:
            raise self.broken[version]
        assert version == 0 or folder == Path(f"/adapters/{version}")
        return StagedDraft(version, self._original.weights)


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def swapper(engine: Engine) -> Swapper:
    return Swapper(engine)


@pytest.fixture
def last_served(tmp_path: Path) -> LastServedFile:
    return LastServedFile(tmp_path / "run")


@pytest.fixture
def watch() -> Mock:
    return Mock(AcceptanceWatch)


@pytest.fixture
def sync(
    engine: Engine,
    swapper: Swapper,
    registry: Registry,
    last_served: LastServedFile,
    watch: Mock,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[AdapterSync]:
    monkeypatch.setattr(adapter_sync, "POLL_SECONDS", 0.01)
    sync = AdapterSync(swapper, registry, last_served, watch)
    yield sync
    sync.stop()


@pytest.fixture
def metrics(engine: Engine, sync: AdapterSync) -> ServingMetrics:
    metrics = ServingMetrics(engine, "tiny", Sources(adapters=sync))
    engine.listeners.append(metrics)
    return metrics


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


def count(metrics: ServingMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, {"model_name": "tiny", **labels})


def test_the_champion_serves_from_the_start_and_is_followed(engine, sync, registry, metrics):
    registry.promote(1)
    sync.start()
    assert engine.draft_version == 1, "before the first request"
    assert eventually(lambda: count(metrics, "hotdraft_swaps_total", reason="startup") == 1)
    registry.promote(2)
    assert eventually(lambda: engine.draft_version == 2)
    assert eventually(lambda: count(metrics, "hotdraft_swaps_total", reason="promotion") == 1)
    registry.rollback(reason="by hand")
    assert eventually(lambda: engine.draft_version == 1)
    assert eventually(lambda: count(metrics, "hotdraft_swaps_total", reason="rollback") == 1)


BROKEN = AdapterError("lora_A has values that are not finite")


def test_a_version_that_does_not_fit_is_unusable_here_and_the_alias_stays(
    engine, sync, registry, swapper, metrics, caplog
):
    swapper.broken = {2: BROKEN}
    registry.promote(1)
    sync.start()
    registry.promote(2)
    assert eventually(lambda: count(metrics, "hotdraft_adapter_unusable", version="2") == 1)
    time.sleep(0.1)
    assert engine.draft_version == 1
    assert registry.champion() == 2
    assert not registry.rolled_back
    assert sync.unusable == {2: str(BROKEN)}
    assert swapper.staged.count(2) == count(metrics, "hotdraft_swap_failures_total") == 1, "it stays what it is"
    assert caplog.text.count("version 2 is unusable here, version 1 serves on") == 1
    registry.promote(3)
    assert eventually(lambda: engine.draft_version == 3)
    assert count(metrics, "hotdraft_adapter_unusable", version="2") is None


def test_one_server_that_fits_nothing_leaves_the_champions_of_the_others(engine, sync, registry, swapper):
    swapper.broken = dict.fromkeys(range(1, 4), AdapterError("adapter was trained on another base"))
    for version in (1, 2, 3):
        registry.promote(version)
    sync.start()
    time.sleep(0.2)
    assert registry.champions == [1, 2, 3]
    assert engine.draft_version == 0


def test_a_champion_that_comes_back_is_tried_again(engine, sync, registry, swapper):
    swapper.broken = {2: BROKEN}
    registry.promote(1)
    sync.start()
    registry.promote(2)
    assert eventually(lambda: sync.unusable.keys() == {2})
    registry.promote(1)
    assert eventually(lambda: not sync.unusable)
    swapper.broken = {}
    registry.promote(2)
    assert eventually(lambda: engine.draft_version == 2)


def test_a_version_is_tried_again_when_its_files_change(engine, sync, registry, swapper, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "download", lambda version: tmp_path)
    monkeypatch.setattr(swapper, "stage", lambda version, folder: stage(swapper, folder / "weights", version))
    registry.promote(1)
    sync.start()
    assert eventually(lambda: sync.unusable.keys() == {1})
    time.sleep(0.1)
    assert swapper.staged == [1]
    (tmp_path / "weights").touch()
    assert eventually(lambda: engine.draft_version == 1)
    assert swapper.staged == [1, 1]


def stage(swapper: Swapper, needed: Path, version: int) -> StagedDraft:
    swapper.staged.append(version)
    if not needed.exists():
        raise AdapterError("weights are missing")
    return StagedDraft(version, swapper._original.weights)


@pytest.mark.parametrize(
    ("cause", "why"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory"),
        (MemoryError(), "out of memory"),
        (RuntimeError("/a/path"), "RuntimeError"),
        (RegistryError("gone from /a/path"), "its files cannot be had"),
    ],
)
def test_what_may_pass_is_tried_again_after_a_while(engine, sync, registry, swapper, monkeypatch, cause, why):
    monkeypatch.setattr(champion, "LONGEST_RETRY_SECONDS", 0.02)
    swapper.broken = {2: cause}
    registry.promote(1)
    sync.start()
    registry.promote(2)
    assert eventually(lambda: swapper.staged.count(2) > 2)
    assert eventually(lambda: sync.unusable == {2: why})
    swapper.broken = {}
    assert eventually(lambda: engine.draft_version == 2)
    assert eventually(lambda: not sync.unusable)
    assert registry.champions == [1, 2]


def test_the_pauses_between_tries_grow(sync, registry, swapper, monkeypatch):
    now = 0.0
    monkeypatch.setattr(champion.time, "monotonic", lambda: now)
    swapper.broken = {1: MemoryError()}
    registry.promote(1)
    tried = []
    for second in range(2000):
        now = float(second)
        before = len(swapper.staged)
        sync._turn("promotion")
        if len(swapper.staged) > before:
            tried.append(second)
    assert tried[:5] == [0, 2, 6, 14, 30]
    assert tried[-1] - tried[-2] == 600


def test_a_server_that_starts_with_an_unusable_champion_serves_what_served_last(
    engine, sync, registry, swapper, last_served, caplog
):
    swapper.broken = {4: BROKEN}
    for version in (1, 2, 3, 4):
        registry.promote(version)
    last_served.write(2, Path("/adapters/2"))
    sync.start()
    assert engine.draft_version == 2, "before the first request"
    time.sleep(0.1)
    assert engine.draft_version == 2
    assert last_served.read() == LastServed(version=2, folder=Path("/adapters/2"))
    assert registry.champions == [1, 2, 3, 4]


def test_else_it_serves_the_newest_champion_that_it_can(engine, sync, registry, swapper, last_served):
    swapper.broken = {2: BROKEN, 3: MemoryError(), 4: BROKEN}
    for version in (1, 2, 3, 4):
        registry.promote(version)
    registry.rolled_back[9] = "it was worse"
    last_served.write(9, Path("/adapters/9"))
    sync.start()
    assert engine.draft_version == 1
    assert sync.unusable.keys() == {2, 3, 4}


def test_whatever_is_odd_in_the_registry_the_thread_goes_on(engine, sync, registry, metrics, caplog):
    registry.odd = KeyError("status")
    registry.promote(1)
    sync.start()
    assert engine.draft_version == 1
    assert eventually(lambda: count(metrics, "hotdraft_adapter_sync_errors_total") > 3)
    registry.promote(2)
    assert eventually(lambda: engine.draft_version == 2)
    assert caplog.text.count("adapter sync, which goes on: KeyError") == 1, "said once, not every second"


def test_refused_versions_are_counted_when_the_champion_changed_not_each_second(engine, sync, registry, metrics):
    registry.promote(1)
    registry.promote(2)
    sync.start()
    time.sleep(0.1)
    assert registry.asked_after == [0]
    registry.rollback(reason="by hand")
    assert eventually(lambda: count(metrics, "hotdraft_adapters_rejected_total") == 1)
    time.sleep(0.1)
    assert registry.asked_after == [0, 0]


def test_a_refusal_is_counted_within_seconds_by_asking_for_newer_versions_alone(
    sync, registry, metrics, monkeypatch
):
    monkeypatch.setattr(adapter_sync, "NEWS_SECONDS", 0.01)
    registry.promote(2)
    registry.rejected = {1, 3}
    sync.start()
    assert count(metrics, "hotdraft_adapters_rejected_total") == 2
    registry.rejected.add(4)
    assert eventually(lambda: count(metrics, "hotdraft_adapters_rejected_total") == 3)
    assert registry.asked_after[:2] == [0, 3]
    assert 0 not in registry.asked_after[1:]


def test_a_store_that_is_down_changes_nothing_until_it_is_back(engine, sync, registry, caplog):
    registry.promote(1)
    sync.start()
    registry.down = True
    registry.champions.append(2)
    assert eventually(lambda: "version 1 serves on" in caplog.text)
    time.sleep(0.1)
    assert engine.draft_version == 1
    assert caplog.text.count("registry cannot be used") == 1, "said once, not every second"
    registry.down = False
    assert eventually(lambda: engine.draft_version == 2)


def test_a_version_whose_files_are_kept_back_waits_for_them(engine, sync, registry, caplog, monkeypatch):
    monkeypatch.setattr(champion, "LONGEST_RETRY_SECONDS", 0.02)
    registry.promote(1)
    sync.start()
    registry.keeps_files_back = True
    registry.promote(2)
    assert eventually(lambda: "version 1 serves on: StoreError: s3://" in caplog.text)
    assert "secret" not in caplog.text
    assert not registry.rolled_back
    assert eventually(lambda: sync.unusable == {2: "its files cannot be had"})
    registry.keeps_files_back = False
    assert eventually(lambda: engine.draft_version == 2)


def test_a_store_that_is_down_at_the_start_does_not_stop_serving(engine, sync, registry):
    registry.promote(1)
    registry.down = True
    sync.start()
    assert engine.draft_version == 0
    registry.down = False
    assert eventually(lambda: engine.draft_version == 1)


def test_what_served_last_serves_until_the_store_is_back(engine, sync, registry, last_served, metrics, caplog):
    registry.promote(1)
    registry.promote(2)
    last_served.write(1, Path("/adapters/1"))
    registry.down = True
    sync.start()
    assert engine.draft_version == 1, "before the first request"
    assert eventually(lambda: count(metrics, "hotdraft_swaps_total", reason="startup") == 1)
    assert "taking up version 1, which served last" in caplog.text
    registry.down = False
    assert eventually(lambda: engine.draft_version == 2)
    assert eventually(lambda: last_served.read() == LastServed(version=2, folder=Path("/adapters/2")))


def test_what_served_last_passes_the_checks_of_any_swap(
    engine, sync, registry, swapper, last_served, metrics, caplog
):
    swapper.broken = {1: BROKEN}
    last_served.write(1, Path("/adapters/1"))
    registry.down = True
    sync.start()
    assert engine.draft_version == 0
    assert count(metrics, "hotdraft_swap_failures_total") == 1
    assert "not finite" in caplog.text
    registry.down = False
    registry.promote(2)
    assert eventually(lambda: engine.draft_version == 2)


def test_a_version_taken_back_while_the_server_was_off_is_not_what_served_last(engine, sync, registry, last_served):
    last_served.write(1, Path("/adapters/1"))
    sync.start()
    assert engine.draft_version == 0
    assert last_served.read() is None
    registry.promote(2)
    assert eventually(lambda: last_served.read() is not None)
    registry.rollback(reason="by hand")
    assert eventually(lambda: engine.draft_version == 0 and last_served.read() is None)


def test_a_watch_that_fails_does_not_stop_the_champion_from_being_followed(engine, sync, registry, watch):
    watch.turn.side_effect = RegistryError("an odd entry")
    sync.start()
    registry.promote(1)
    assert eventually(lambda: engine.draft_version == 1)


def test_a_store_that_can_be_read_and_not_told_keeps_no_champion_from_being_followed(
    engine, sync, registry, watch, monkeypatch
):
    monkeypatch.setattr(adapter_sync, "POLL_SECONDS", 0.01)
    watch.turn.side_effect = MlflowException("no tag may be written")
    sync.start()
    registry.promote(1)
    assert eventually(lambda: engine.draft_version == 1)
    assert eventually(lambda: sync.errors >= 1)
