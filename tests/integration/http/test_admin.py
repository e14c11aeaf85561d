"""An operator's way through the admin API of a live server, and the command line beside it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from hotdraft.cli import app
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.store.connection import open_client
from hotdraft.pipeline.store.registry import AdapterRegistry
from tests.integration.processes import Server, Trickle, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ENDED = ("accepted", "rejected", "failed", "interrupted", "cancelled", "died")


class Admin:
    """The routes, each answering the JSON of the status that it should."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(
            base_url=f"{url}/admin", timeout=60.0, headers={"Content-Type": "application/json"}
        )

    def ask(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        response = self._client.request(method, path, json=body)
        assert response.status_code == status, response.text
        return response.json()

    def job(self, job_id: str) -> dict[str, Any]:
        return self.ask("GET", f"jobs/{job_id}")

    def ended(self, job_id: str) -> dict[str, Any]:
        """The job once it has ended, as it must soon."""

        def look() -> dict[str, Any] | None:
            job = self.job(job_id)
            return job if job["state"] in ENDED else None

        return wait_for(f"the end of job {job_id}", look, 150)


@pytest.fixture(scope="module")
def config_path(write_config: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The loop would begin a job at the 60th request, and k is automatic."""
    engine = {"k": "auto", "max_k": 3, "num_slots": 4, "max_model_len": 128}
    return write_config(tmp_path_factory.mktemp("admin"), engine=engine)


@pytest.fixture(scope="module")
def admin(server: Server) -> Admin:
    return Admin(server.url)


@pytest.fixture
def hotdraft(config_path: Path) -> Callable[..., Any]:
    """`hotdraft(...)` gives what a command prints as JSON; it must succeed."""

    def run(*arguments: str) -> Any:
        result = CliRunner().invoke(app, [*arguments, "--config", str(config_path), "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    return run


@pytest.fixture(scope="module")
def accepted(server: Server, admin: Admin, config: HotdraftConfig) -> dict[str, Any]:
    """The first job, started over HTTP with the loop off, while the server serves."""
    assert admin.ask("PUT", "loop", {"enabled": False})["enabled"] is False
    server.ask_many(range(110))
    buffer = ReplayBuffer(config.replay_url)
    wait_for("every request in a committed shard", lambda: buffer.stats().requests == 110)
    assert admin.ask("GET", "jobs") == {"jobs": []}, "the loop is off, though a job is due"
    with Trickle(server, first=500, pause=0.2) as trickle:
        job = admin.ask("POST", "jobs", status=202)
        assert (job["origin"], job["state"]) == ("api", "running")
        refused = admin.ask("POST", "jobs", status=409)
        assert job["id"] in refused["error"]["message"]
        ended = admin.ended(job["id"])
    assert not trickle.failures
    assert trickle.answers
    return ended


def test_a_job_over_http_is_judged_and_its_version_served(
    server: Server, admin: Admin, accepted: dict[str, Any], config: HotdraftConfig
) -> None:
    assert (accepted["state"], accepted["version"]) == ("accepted", 1), accepted
    assert AdapterRegistry(config).version(1).run_id == accepted["run_id"]
    assert accepted["metrics"]["gain"] > 0
    assert accepted["metrics"]["steps"] == 60
    assert accepted["started_at"] < accepted["ended_at"]
    wait_for("the version served", lambda: admin.ask("GET", "status")["draft_version"] == 1, 20)
    assert server.ask(600).draft_version == 1


def test_versions_are_shown_and_the_champion_is_moved(
    server: Server, admin: Admin, accepted: dict[str, Any], hotdraft: Callable[..., Any]
) -> None:
    def agree(path: str, *command: str) -> bool:
        """What was served is told to the store now and then, perhaps between the two questions."""
        told = admin.ask("GET", path)
        return told.get("adapters", told) == hotdraft("adapters", *command)

    wait_for("the same list", lambda: agree("adapters", "list"))
    wait_for("the same version", lambda: agree("adapters/1", "show", "1"))
    assert admin.ask("GET", "adapters")["champion"] == 1
    assert admin.ask("POST", "adapters/rollback", {"reason": "a try"}) == {"champion": 0, "pinned": True}
    wait_for("the rollback", lambda: server.draft_version == 0, 20)
    admin.ask("POST", "adapters/rollback", status=409)
    admin.ask("POST", "adapters/7/promote", status=404)
    assert admin.ask("POST", "adapters/1/promote") == {"champion": 1, "pinned": True}
    wait_for("the promotion", lambda: server.draft_version == 1, 20)
    assert server.ask(601).draft_version == 1
    assert admin.ask("POST", "adapters/unpin") == {"champion": 1, "pinned": False}


def test_a_cancelled_job_is_dropped_and_serving_goes_on(
    server: Server, admin: Admin, accepted: dict[str, Any], hotdraft: Callable[..., Any], config: HotdraftConfig
) -> None:
    job = hotdraft("jobs", "start")
    assert job["origin"] == "command"
    wait_for("its MLflow run", lambda: admin.job(job["id"])["run_id"], 120)
    assert admin.ask("DELETE", f"jobs/{job['id']}", status=202)["state"] == "cancelling"
    ended = admin.ended(job["id"])
    assert (ended["state"], ended["version"]) == ("cancelled", None), ended
    assert "cancelled" in ended["log_tail"]
    assert hotdraft("jobs", "show", job["id"]) == ended
    assert [one["id"] for one in hotdraft("jobs", "list")] == [job["id"], accepted["id"]]
    assert open_client(config).get_run(ended["run_id"]).info.status == "KILLED"
    assert not (config.run_dir / "jobs" / job["id"]).exists()
    assert len(AdapterRegistry(config).versions()) == 1
    admin.ask("DELETE", f"jobs/{job['id']}", status=409)
    admin.ask("DELETE", "jobs/no-such-job", status=404)
    assert server.ask(602).draft_version == 1


def test_k_is_overridden_over_http_and_by_the_command_line(
    server: Server, admin: Admin, accepted: dict[str, Any], hotdraft: Callable[..., Any]
) -> None:
    assert admin.ask("PUT", "k", {"k": 0}) == {"k": 0, "k_override": 0, "configured_k": "auto", "max_k": 3}
    assert server.ask(603).drafted == 0
    admin.ask("PUT", "k", {"k": 4}, status=409)
    assert hotdraft("k", "2")["k"] == 2
    wait_for("the override", lambda: admin.ask("GET", "status")["k"] == 2, 10)
    assert server.ask(604).drafted > 0
    assert hotdraft("k", "config")["k"] is None
    wait_for("the configured k", lambda: admin.ask("GET", "k")["k"] == "auto", 10)


def test_the_loop_goes_on_when_it_is_switched_on(
    server: Server, admin: Admin, accepted: dict[str, Any], hotdraft: Callable[..., Any]
) -> None:
    status = admin.ask("GET", "status")
    assert (status["loop_enabled"], status["trainer"]) == (False, "running")
    server.ask_many(range(1000, 1110))
    before = admin.ask("GET", "jobs")["jobs"]
    assert hotdraft("loop", "on")["loop_enabled"]

    def of_the_loop() -> list[dict[str, Any]]:
        return [job for job in admin.ask("GET", "jobs")["jobs"] if job["origin"] == "loop"]

    assert not [job for job in before if job["origin"] == "loop"]
    [job] = wait_for("a job of the loop", of_the_loop, 60)
    ended = admin.ended(job["id"])
    assert ended["state"] in ("accepted", "rejected")
    assert "requests to learn from" in ended["log_tail"]
    assert f"version 2 {ended['state']} after" in ended["log_tail"]
    assert server.stop() == 0, server.words()
