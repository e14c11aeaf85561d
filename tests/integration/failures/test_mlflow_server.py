"""The loop against a real `mlflow server` that is away at first, comes, is killed, and comes back.

Then it is killed again, and so is hotdraft's server, which starts while the store is away.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from hotdraft.pipeline.config.settings import HotdraftConfig, load_config
from hotdraft.pipeline.store.registry import AdapterRegistry
from tests.integration.failures.mlflow_server import MlflowServer
from tests.integration.processes import Server, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

WHILE_AWAY, AFTER_THE_SWAP, WHILE_KILLED = range(80), range(1000, 1020), range(2000, 2020)
AFTER_THE_RESTART = range(3000, 3020)


@pytest.fixture
def mlflow_server(tmp_path: Path, empty_mlflow_db: Path) -> Iterator[MlflowServer]:
    shutil.copy(empty_mlflow_db, tmp_path / "mlflow.db")
    server = MlflowServer(tmp_path)
    yield server
    server.kill()


@pytest.fixture
def config_path(write_config: Callable[..., Path], mlflow_server: MlflowServer, tmp_path: Path) -> Path:
    return write_config(
        tmp_path,
        distill={"trigger": {"min_new_requests": 40, "min_new_rejected": 100, "poll_seconds": 0.3}},
        tracking={"uri": mlflow_server.url, "served_seconds": 1.0},
    )


class Store:
    """What a person would find at MLflow's server."""

    def __init__(self, config: HotdraftConfig) -> None:
        self._config = config
        self.client = MlflowClient(config.tracking_uri, config.tracking_uri)

    def runs(self, experiment: str) -> list[Any]:
        found = self.client.get_experiment_by_name(experiment)
        return self.client.search_runs([found.experiment_id]) if found else []

    def served_points(self) -> list[Any]:
        """The points of `requests` of the one serving run, as they were made."""
        runs = self.runs(self._config.tracking.serving_experiment)
        if not runs:
            return []
        [run] = runs
        return sorted(self.client.get_metric_history(run.info.run_id, "requests"), key=lambda point: point.step)

    def has_point(self, requests: int) -> bool:
        points = self.served_points()
        return bool(points) and points[-1].value >= requests


def test_serving_and_learning_outlive_a_store_that_comes_and_goes(
    mlflow_server: MlflowServer, config_path: Path
) -> None:
    config = load_config(config_path)
    command = [sys.executable, "-m", "hotdraft", "adapters", "list", "--config", str(config_path)]
    listing = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    server = Server(config_path, config_path.with_name("server.log"), "--self-improve")
    try:
        first = server.ask_many(WHILE_AWAY)
        asked = time.time()
        assert {answer.draft_version for answer in first} == {0}
        trainer_log = config.run_dir / "trainer.log"
        wait_for("a job that waits", lambda: "cannot be used" in trainer_log.read_text())
        said, complaint = listing.communicate(timeout=60)
        assert (listing.returncode, said) == (2, "")
        assert complaint.startswith(f"hotdraft: the MLflow store {mlflow_server.url} cannot be used: ")
        assert complaint.count("\n") == 1

        mlflow_server.start()
        store = Store(config)
        wait_for("the points from before", lambda: store.has_point(len(first)), 90)
        [point, *_] = store.served_points()
        assert point.timestamp / 1000 < asked + config.tracking.interval_seconds + 1, "it has its own time"
        wait_for("a swap", lambda: server.draft_version == 1, 120)
        trainer = server.trainer_pid()
        assert server.metric("hotdraft_trainer_restarts_total") == 0, "the trainer waited"
        after = server.ask_many(AFTER_THE_SWAP)
        assert {answer.draft_version for answer in after} == {1}

        mlflow_server.kill()
        killed = time.time()
        during = server.ask_many(WHILE_KILLED)
        assert {answer.draft_version for answer in during} == {1}
        ended = time.time()
        mlflow_server.start()
        total = len(first) + len(after) + len(during)
        wait_for("the points from meanwhile", lambda: store.has_point(total), 90)
        last = store.served_points()[-1]
        assert killed < last.timestamp / 1000 < ended + config.tracking.interval_seconds + 1
        assert server.trainer_pid() == trainer

        registry = AdapterRegistry(config)
        wait_for("all that version 1 served", lambda: served_requests(registry) == len(after) + len(during), 60)
        assert server.stop() == 0, server.words()
        assert len(list((config.run_dir / "adapters").iterdir())) == 1, "server and trainer share what they fetched"
        [serving] = store.runs(config.tracking.serving_experiment)
        [training] = [run for run in store.runs(config.tracking.training_experiment)
                      if run.info.run_id == registry.version(1).run_id]  # fmt: skip
        assert serving.info.run_id in training.data.tags["mlflow.note.content"]
        assert training.info.run_id in serving.data.tags["mlflow.note.content"]
        assert registry.version(1).tags[f"served/{serving.info.run_id}"]
        assert serving.info.status == "FINISHED"

        mlflow_server.kill()
        server = Server(config_path, config_path.with_name("restarted.log"))
        restarted = server.ask_many(AFTER_THE_RESTART)
        assert {answer.draft_version for answer in restarted} == {1}, "what served last, from the first request on"
        assert "taking up version 1, which served last" in server.log.read_text()
        mlflow_server.start()
        registry.rollback(reason="by hand")
        wait_for("the registry's word", lambda: server.draft_version == 0, 90)
        assert server.stop() == 0, server.words()
    finally:
        server.kill()


def served_requests(registry: AdapterRegistry) -> int:
    served = registry.version(1).served
    return served.requests if served else 0
