"""Servers over a real registry with three versions."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient

from hotdraft.pipeline.config.learning import WatchdogConfig
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.store.connection import experiment_id, open_client
from hotdraft.pipeline.store.registry import AdapterRegistry
from tests.unit.serving.updates.watching.servers import Server, promote


@pytest.fixture
def config(empty_mlflow_db: Path, tmp_path: Path) -> HotdraftConfig:
    (tmp_path / "run").mkdir()
    shutil.copy(empty_mlflow_db, tmp_path / "run" / "mlflow.db")
    watchdog = WatchdogConfig(min_requests=10, max_requests=60)
    return HotdraftConfig(target="tiny", run_dir=tmp_path / "run", watchdog=watchdog)


@pytest.fixture
def client(config: HotdraftConfig) -> MlflowClient:
    return open_client(config)


@pytest.fixture
def registry(config: HotdraftConfig, client: MlflowClient, tmp_path: Path) -> AdapterRegistry:
    """With versions 1, 2 and 3, of which 1 serves."""
    run = client.create_run(experiment_id(client, config, "training")).info.run_id
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "weights").write_text("")
    registry = AdapterRegistry(config)
    for _ in range(3):
        registry.publish(folder, run_id=run, tags={})
    registry.promote(1, reason="first")
    return registry


@pytest.fixture
def server(config: HotdraftConfig, registry: AdapterRegistry) -> Callable[[str], Server]:
    return lambda name: Server(name, config, registry)


@pytest.fixture
def one(server: Callable[[str], Server], registry: AdapterRegistry) -> Server:
    """A server that had 0.6 of its drafts accepted, and tries version 2 now."""
    one = server("one")
    one.serve(0.6, 30)
    promote(registry, 2, one)
    return one
