"""Serving run, adapter version and training run in a real store, each with links to the others."""

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.store.connection import create_run, experiment_id, open_client
from hotdraft.pipeline.store.history import Swap
from hotdraft.pipeline.store.lineage import GATE_BY_DOMAIN, Lineage
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.pipeline.store.served import DomainCounts, Served

TAGS = {
    "parent": "0",
    "train_requests": "66",
    "train_tokens": "3000",
    "train_first_request": "req`1|",
    "train_last_request": "req-9",
    "train_first_at": "1763770000.5",
    "train_last_at": "1763771000.5",
    GATE_BY_DOMAIN: json.dumps({"sql": {"requests": 12, "champion": 0.2, "candidate": 0.45}}),
}
COUNTS = Served(4, 40, 32, 20, 1763772000, 1763773000, {"sql": DomainCounts(4, 32, 20)})


class Store:
    def __init__(self, config: HotdraftConfig, folder: Path) -> None:
        self.config, self.client = config, open_client(config)
        self.registry = AdapterRegistry(config)
        self.lineage = Lineage(self.client, config)
        self.training = self.run(config.tracking.training_experiment, "distill-1")
        folder.mkdir()
        (folder / "weights").write_text("w")
        self.version = self.registry.publish(folder, run_id=self.training, tags=TAGS)

    def run(self, experiment: str, name: str) -> str:
        return create_run(self.client, experiment_id(self.client, self.config, experiment), name, "test")

    def link(self, run_id: str) -> str:
        info = self.client.get_run(run_id).info
        return f"[{info.run_name}](#/experiments/{info.experiment_id}/runs/{run_id})"

    def note(self, run_id: str) -> str:
        return self.client.get_run(run_id).data.tags["mlflow.note.content"]

    def description(self) -> str:
        return self.client.get_model_version(self.config.tracking.registered_model, str(self.version)).description


@pytest.fixture
def store(store_config: HotdraftConfig, tmp_path: Path) -> Store:
    return Store(store_config, tmp_path / "adapter")


def test_each_of_the_three_links_to_the_other_two(store):
    serving = store.run("hotdraft-serving", "serving tiny")
    store.lineage.describe(store.version)
    assert "It has not served yet." in store.description()
    store.lineage.describe_serving(serving, [Swap(0.0, 7, store.version, "promotion")], {store.version: COUNTS})
    store.lineage.record_served(store.version, serving, COUNTS)

    version_link = f"[version {store.version}](#/models/hotdraft-draft/versions/{store.version})"
    assert store.link(store.training) in store.description()
    assert store.link(serving) in store.description()
    assert version_link in store.note(store.training)
    assert store.link(serving) in store.note(store.training)
    assert f"| 7 | {version_link} | promotion | {store.link(store.training)} |" in store.note(serving)
    assert f"| {version_link} | 4 | 0.500 |" in store.note(serving)


def test_the_gates_promise_stands_beside_what_was_served(store):
    store.lineage.record_served(store.version, store.run("hotdraft-serving", "serving tiny"), COUNTS)
    text = store.description()
    assert "| sql | 12 | 0.200 | 0.450 | 4 | 0.625 |" in text
    assert "66 requests (3000 tokens) recorded from 2025-11-22 00:06:40 UTC" in text
    assert "`req_1_` to `req-9`" in text
    tags = store.registry.version(store.version).tags
    assert (tags["served_requests"], tags["served_acceptance_rate"]) == ("4", "0.5")
    metrics = store.client.get_run(store.training).data.metrics
    assert metrics["served_acceptance_of_examined"] == 0.625
    assert metrics["served_requests"] == 4


def test_servers_of_one_version_do_not_overwrite_each_other(store):
    first, second = (store.run("hotdraft-serving", name) for name in ("one", "two"))
    store.lineage.record_served(store.version, first, COUNTS)
    store.lineage.record_served(store.version, second, COUNTS)
    store.lineage.record_served(store.version, first, COUNTS + COUNTS)
    assert store.registry.version(store.version).served.requests == 12
    assert store.registry.version(store.version).tags["served_requests"] == "12"
    assert {store.link(first), store.link(second)} <= {
        line.split(" | ")[0].removeprefix("| ") for line in store.description().splitlines()
    }


def test_versions_and_runs_that_are_gone_are_passed_over(store):
    store.lineage.record_served(99, "ffff", COUNTS)
    store.lineage.describe(99)
    store.client.delete_run(store.training)
    store.lineage.record_served(store.version, 32 * "f", COUNTS)
    assert store.registry.version(store.version).served.requests == 4
    assert 32 * "f" in store.description()


@pytest.mark.parametrize("method", ["get_model_version", "get_run"])
def test_a_store_that_is_away_is_told_and_not_taken_for_one_where_they_are_gone(store, monkeypatch, method):
    """Whoever tells what was served would take it for told."""
    with monkeypatch.context() as away:
        away.setattr(MlflowClient, method, Mock(side_effect=MlflowException("no route")))
        with pytest.raises(MlflowException, match="no route"):
            store.lineage.record_served(store.version, "f" * 32, COUNTS)
    store.lineage.record_served(store.version, "f" * 32, COUNTS)
    assert store.registry.version(store.version).served.requests == 4
    assert store.link(store.training) in store.description()


def test_texts_stay_within_what_mlflow_takes(store):
    domains = {f"{i}-" + 90 * "d": DomainCounts(1, 8, 6) for i in range(40)}
    many = Served(40, 400, 320, 240, 1, 2, domains)
    swaps = [Swap(0.0, i, store.version, 200 * "why ") for i in range(100)]
    for i in range(12):
        serving = store.run("hotdraft-serving", f"serving {i}")
        store.lineage.record_served(store.version, serving, many)
    store.lineage.describe_serving(serving, swaps, dict.fromkeys(range(100), many))
    assert len(store.description()) <= 5000
    assert len(store.note(store.training)) <= 8000
    assert len(store.note(serving)) < 8000, "what is longer, MLflow cuts"
