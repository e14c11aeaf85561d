"""Spoiled champions over real HTTP and a `kill -9`; the unit test of spoiled adapters has all kinds."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from hotdraft.cli import app
from hotdraft.pipeline.config.settings import HotdraftConfig, load_config
from hotdraft.pipeline.store.adapter_version import CHAMPION
from hotdraft.pipeline.store.connection import experiment_id, open_client
from hotdraft.pipeline.store.registry import AdapterRegistry
from tests.integration.adapters import write_adapter
from tests.integration.processes import Answer, Server, Trickle, wait_for
from tests.scenarios.spoiled_adapters import SPOILED_FILES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

GOOD = 1
CASES = ["card: of another draft", "weights: float8", "probe: of another training"]


@pytest.fixture
def config_path(write_config: Callable[..., Path], tmp_path: Path) -> Path:
    return write_config(tmp_path)


@pytest.fixture
def publish(config_path: Path, tmp_path: Path) -> Callable[[], int]:
    """Publishes a good adapter."""
    config = load_config(config_path)
    assert config.draft is not None
    folder = write_adapter(tmp_path / "good", config.draft, scale=0.02)
    client, registry = open_client(config), AdapterRegistry(config)
    run = client.create_run(experiment_id(client, config, config.tracking.training_experiment)).info.run_id
    return lambda: registry.publish(folder, run_id=run, tags={})


def unusable(server: Server) -> dict[str, str]:
    answer = httpx.get(f"{server.url}/health", timeout=30.0)
    assert answer.status_code == 200, "the process works"
    return answer.json().get("unusable_adapters", {})


def answers_until_marked(server: Server, version: int) -> list[Answer]:
    with Trickle(server, 0) as trickle:
        wait_for("a mark", lambda: str(version) in unusable(server))
        served = len(trickle.answers)
        wait_for("more answers", lambda: len(trickle.answers) > served + 5)
    assert not trickle.failures
    return trickle.answers


def test_no_spoiled_champion_serves_or_fails_a_request_and_a_restart_serves_the_last_good_one(
    config_path: Path, publish: Callable[[], int], tmp_path: Path
) -> None:
    config: HotdraftConfig = load_config(config_path)
    registry, client = AdapterRegistry(config), open_client(config)
    assert publish() == GOOD
    registry.promote(GOOD, reason="gate")
    server = Server(config_path, tmp_path / "server.log")
    try:
        for number, case in enumerate(CASES):
            version = publish()
            SPOILED_FILES[case](registry.download(version))
            if number % 2:
                client.delete_model_version_tag(config.tracking.registered_model, str(version), "status")
            client.set_registered_model_alias(config.tracking.registered_model, CHAMPION, str(version))
            answers = answers_until_marked(server, version)
            server.kill()
            server = Server(config_path, tmp_path / "server.log")
            answers += server.ask_many(range(500, 510))
            assert {answer.draft_version for answer in answers} == {GOOD}
            assert unusable(server).keys() == {str(version)}
            assert server.metric("hotdraft_adapter_unusable") == 1
            assert registry.champion() == version, "moved by nobody"
            listed = httpx.get(f"{server.url}/admin/adapters", timeout=30.0)
            assert listed.status_code == 200
            assert len(listed.json()["adapters"]) == version
        assert CliRunner().invoke(app, ["adapters", "list", "--config", str(config_path)]).exit_code == 0
        good = publish()
        registry.promote(good, reason="gate")
        following = server
        wait_for("the good one", lambda: following.draft_version == good)
        assert not unusable(server)
        assert server.stop() == 0, server.words()
    finally:
        server.kill()
