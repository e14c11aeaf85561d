"""The thread that follows the champion, over a real engine and a registry that obeys the test."""

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.metrics.listener import ServingMetrics
from hotdraft.serving.metrics.state_metrics import Sources
from hotdraft.serving.updates import adapter_sync
from hotdraft.serving.updates.acceptance_watch import AcceptanceWatch
from hotdraft.serving.updates.adapter_sync import AdapterSync
from hotdraft.serving.updates.last_served import LastServedFile
from tests.unit.serving.updates.followed import Registry, Swapper


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
