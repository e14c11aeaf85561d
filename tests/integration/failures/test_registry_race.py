"""Servers and trainers that write to one MLflow server at once, from machines that share nothing else."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.store.adapter_version import ROLLED_BACK
from hotdraft.pipeline.store.connection import experiment_id, open_client
from hotdraft.pipeline.store.registry import AdapterRegistry
from tests.integration.failures.mlflow_server import MlflowServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

WRITERS, PROMOTIONS = 3, 6
"""Each writer promotes so many versions of its own, and rolls back what serves after every third."""


@pytest.fixture
def config(tmp_path: Path, empty_mlflow_db: Path) -> Iterator[HotdraftConfig]:
    shutil.copy(empty_mlflow_db, tmp_path / "mlflow.db")
    server = MlflowServer(tmp_path)
    server.start()
    yield HotdraftConfig(target="tiny", run_dir=tmp_path / "run", tracking={"uri": server.url})
    server.kill()


def test_no_promotion_and_no_rollback_is_lost(config: HotdraftConfig, tmp_path: Path) -> None:
    client = open_client(config)
    run_id = client.create_run(experiment_id(client, config, "training")).info.run_id
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "weights").write_text("w")
    registry = AdapterRegistry(config)
    versions = [registry.publish(tmp_path / "adapter", run_id=run_id, tags={})]
    for _ in range(WRITERS * PROMOTIONS - 1):
        versions.append(registry.publish(tmp_path / "adapter", run_id=run_id, tags={}))

    def write(number: int) -> None:
        own = AdapterRegistry(config)
        for count, version in enumerate(versions[number::WRITERS], 1):
            own.promote(version, reason="gate")
            if count % 3 == 0:
                own.rollback(reason="fell")

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))
    champion = registry.champion()
    chain = [champion, *registry.champions_before(champion)] if champion else []
    rolled_back = [found.version for found in registry.versions() if found.status == ROLLED_BACK]
    assert sorted([*chain, *rolled_back]) == versions, "each is still on the way back, or was rolled back"
    assert len(rolled_back) == WRITERS * PROMOTIONS // 3
    assert [model.name for model in client.search_registered_models()] == [config.tracking.registered_model]
