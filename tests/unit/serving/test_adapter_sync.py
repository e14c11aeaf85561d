"""The thread that follows the champion, over a real engine and a registry that obeys the test."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from mlflow.exceptions import MlflowException

from pipeline.adapters import AdapterError
from pipeline.config import WatchdogConfig
from pipeline.mlflow_store import StoreError
from pipeline.registry import CHAMPION, RETIRED, ROLLED_BACK, AdapterVersion, RegistryError
from pipeline.watchdog import AcceptanceWatch
from serving import adapter_sync
from serving.adapter_sync import AdapterSync
from serving.engine import Engine
from serving.hot_swap import HotSwapper, StagedDraft
from serving.last_served import LastServed, LastServedFile
from serving.metrics import ServingMetrics
from serving.request import GenerationRequest, RequestStats, SamplingParams


class Registry:
    """What `AdapterSync` needs of an `AdapterRegistry`, in memory."""

    def __init__(self) -> None:
        self.champions: list[int] = []
        self.rolled_back: dict[int, str] = {}
        self.down = False
        self.keeps_files_back = False

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

    def versions(self) -> list[AdapterVersion]:
        self._reach()
        known = {**dict.fromkeys(self.champions, RETIRED), **dict.fromkeys(self.rolled_back, ROLLED_BACK)}
        if self.champions:
            known[self.champions[-1]] = CHAMPION
        return [AdapterVersion(version, status, [], "run", 0.0, {}, None) for version, status in known.items()]

    def download(self, version: int, into: Path | None = None) -> Path:
        self._reach()
        if self.keeps_files_back:
            raise StoreError("the artifact store is away")
        return Path(f"/adapters/{version}")

    def _reach(self) -> None:
        if self.down:
            raise MlflowException("no route to the store")


class Swapper(HotSwapper):
    """Stages the draft itself as every version but those in `broken`: what is swapped is tested elsewhere."""

    broken: frozenset[int] = frozenset()

    def stage(self, version: int, folder: Path | None) -> StagedDraft:
        if version in self.broken:
            raise AdapterError("lora_A has values that are not finite")
        assert version == 0 or folder == Path(f"/adapters/{version}")
        return StagedDraft(version, self._original.weights)


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def swapper(engine: Engine) -> Swapper:
    return Swapper(engine, "fingerprint", 4)


@pytest.fixture
def metrics(engine: Engine) -> ServingMetrics:
    return ServingMetrics(engine, "tiny")


@pytest.fixture
def last_served(tmp_path: Path) -> LastServedFile:
    return LastServedFile(tmp_path / "run")


@pytest.fixture
def sync(
    engine: Engine,
    swapper: Swapper,
    registry: Registry,
    metrics: ServingMetrics,
    last_served: LastServedFile,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[AdapterSync]:
    monkeypatch.setattr(adapter_sync, "POLL_SECONDS", 0.01)
    watch = AcceptanceWatch(WatchdogConfig(min_requests=10, max_requests=60))
    sync = AdapterSync(swapper, registry, last_served, watch, metrics)
    engine.listeners += [metrics, sync]
    yield sync
    sync.stop()


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


def count(metrics: ServingMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, {"model_name": "tiny", **labels})


def finish(sync: AdapterSync, rate: float, requests: int, total_seconds: float = 0.0) -> None:
    """Requests that finish now with about `rate` of 100 examined tokens accepted, and as many never examined."""
    for accepted in np.random.default_rng(requests).normal(100 * rate, 5, requests).clip(0, 100):
        stats = RequestStats(3, 9, 4, 200, 100, int(accepted), 0, 0.0, 0.0, total_seconds)
        sync.on_finish(GenerationRequest("r", (1,), SamplingParams(), "d"), stats, "length")


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


def test_a_broken_adapter_is_rolled_back_and_the_old_version_serves(engine, sync, registry, swapper, metrics):
    swapper.broken = frozenset({2})
    registry.promote(1)
    sync.start()
    registry.promote(2)
    assert eventually(lambda: 2 in registry.rolled_back)
    assert "not finite" in registry.rolled_back[2]
    assert eventually(lambda: count(metrics, "hotdraft_adapters_rejected_total") == 1)
    assert engine.draft_version == registry.champion() == 1
    assert eventually(lambda: count(metrics, "hotdraft_swap_failures_total") == 1)
    registry.promote(3)
    assert eventually(lambda: engine.draft_version == 3)


def test_a_store_that_is_down_changes_nothing_until_it_is_back(engine, sync, registry, caplog):
    registry.promote(1)
    sync.start()
    registry.down = True
    registry.champions.append(2)
    assert eventually(lambda: "version 1 serves on" in caplog.text)
    time.sleep(0.1)
    assert engine.draft_version == 1
    assert caplog.text.count("cannot be reached") == 1, "said once, not every second"
    registry.down = False
    assert eventually(lambda: engine.draft_version == 2)


def test_a_version_whose_files_are_kept_back_is_not_rolled_back(engine, sync, registry, metrics, caplog):
    registry.promote(1)
    sync.start()
    registry.keeps_files_back = True
    registry.promote(2)
    assert eventually(lambda: "version 1 serves on: the artifact store is away" in caplog.text)
    assert not registry.rolled_back
    assert not count(metrics, "hotdraft_swap_failures_total")
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
    assert count(metrics, "hotdraft_swaps_total", reason="startup") == 1
    assert "taking up version 1, which served last" in caplog.text
    registry.down = False
    assert eventually(lambda: engine.draft_version == 2)
    assert eventually(lambda: last_served.read() == LastServed(version=2, folder=Path("/adapters/2")))


def test_what_served_last_passes_the_checks_of_any_swap(
    engine, sync, registry, swapper, last_served, metrics, caplog
):
    swapper.broken = frozenset({1})
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


def test_a_real_fall_rolls_back(engine, sync, registry):
    registry.promote(1)
    sync.start()
    finish(sync, 0.6, 30)
    registry.promote(2)
    assert eventually(lambda: engine.draft_version == 2)
    finish(sync, 0.1, 40, total_seconds=3600)  # began on version 1: not its successor's fault
    time.sleep(0.1)
    assert engine.draft_version == 2
    finish(sync, 0.2, 20)
    assert eventually(lambda: engine.draft_version == 1)
    assert "served acceptance fell from 0." in registry.rolled_back[2]
    time.sleep(0.1)
    assert list(registry.rolled_back) == [2], "the version returned to is judged anew"


def test_a_better_version_stays(engine, sync, registry):
    registry.promote(1)
    sync.start()
    finish(sync, 0.5, 30)
    registry.promote(2)
    assert eventually(lambda: engine.draft_version == 2)
    finish(sync, 0.7, 30)
    time.sleep(0.1)
    assert engine.draft_version == 2
    assert not registry.rolled_back
