"""The whole loop in real processes: serve, record, distil, gate, swap; and `kill -9` of either side."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from typer.testing import CliRunner

from hotdraft.cli import app
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.job_record import VERDICTS, Job
from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.store.connection import open_client
from hotdraft.pipeline.store.registry import AdapterRegistry
from tests.integration.processes import WORDS, Answer, Server, Trickle, acceptance_rate, is_running, kill, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FIRST, AFTER, SECOND = range(120), range(1000, 1030), range(2000, 2120)


@pytest.fixture(scope="module")
def config_path(write_config: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("loop"))


@pytest.fixture(scope="module")
def server(config_path: Path) -> Iterator[Server]:
    """Started as a user starts it, for who dies with whom."""
    server = Server(config_path, config_path.with_name("server.log"), "--self-improve", cold=True)
    yield server
    server.kill()


@pytest.fixture(scope="module")
def learned(server: Server) -> tuple[list[Answer], list[Answer]]:
    """Answers before any swap and after the first; requests are under way when it comes."""
    first = server.ask_many(FIRST)
    with Trickle(server, first=500, pause=1.0) as trickle:
        wait_for("a swap", lambda: server.metric("hotdraft_swaps_total") >= 1, 120)
    assert not trickle.failures
    return first, server.ask_many(AFTER)


def hotdraft(*arguments: object) -> str:
    """What the command line prints; it must succeed."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_draft_learns_from_the_traffic_it_serves(
    server: Server, learned: tuple[list[Answer], list[Answer]]
) -> None:
    before, after = learned
    assert {answer.draft_version for answer in before} == {0}
    assert {answer.draft_version for answer in after} == {1}
    assert acceptance_rate(after) > acceptance_rate(before) + 0.05
    assert server.metric("hotdraft_trainer_restarts_total") == 0
    assert server.metric("hotdraft_recorder_dropped_total") == 0


@pytest.mark.usefixtures("learned")
def test_the_commands_tell_of_it(config_path: Path) -> None:
    [version] = json.loads(hotdraft("adapters", "list", "--config", config_path, "--json"))
    assert (version["version"], version["status"], version["aliases"]) == (1, "champion", ["champion"])
    shown = hotdraft("adapters", "show", "1", "--config", config_path)
    assert version["run_id"] in shown
    assert "candidate_expected_acceptance" in shown

    def replay_stats() -> dict[str, Any]:
        return json.loads(hotdraft("replay", "stats", "--config", config_path, "--json"))

    sent = len(FIRST) + len(AFTER)
    wait_for("every request in a committed shard", lambda: replay_stats()["requests"] >= sent)
    stats = replay_stats()
    assert stats["by_draft_version"]["0"]["requests"] >= len(FIRST)
    assert stats["by_domain"].keys() == set(WORDS)
    assert stats["drafted"] > stats["rejected"] > 0


def test_mlflow_shows_served_acceptance_beside_the_training_that_raised_it(
    config: HotdraftConfig, learned: tuple[list[Answer], list[Answer]]
) -> None:
    client = open_client(config)
    [serving] = runs(client, config.tracking.serving_experiment)

    def history(name: str) -> list[tuple[int, float]]:
        return [(point.step, point.value) for point in client.get_metric_history(serving.info.run_id, name)]

    finished = len(FIRST) + len(AFTER)
    wait_for("the last served point", lambda: history("requests")[-1][1] >= finished, 20)
    rates = history("acceptance_rate")
    assert len(rates) >= 3
    assert all(0 <= rate <= 1 for _, rate in rates)
    assert rates[-1][1] > rates[0][1]
    versions = [value for _, value in history("draft_version")]
    assert versions == sorted(versions)
    assert set(versions) == {0, 1}

    [training] = runs(client, config.tracking.training_experiment)
    assert AdapterRegistry(config).version(1).run_id == training.info.run_id
    assert training.data.tags["draft_version"] == "1"
    assert training.data.tags["verdict"] == "accepted"
    assert len(client.get_metric_history(training.info.run_id, "loss")) >= 2
    note = client.get_run(serving.info.run_id).data.tags["mlflow.note.content"]
    assert training.info.run_id in note


def runs(client: MlflowClient, experiment: str) -> list[Any]:
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    return client.search_runs([found.experiment_id])


@pytest.mark.usefixtures("learned")
def test_an_operator_rolls_the_live_server_back_and_forward(server: Server, config_path: Path) -> None:
    with Trickle(server, first=600, pause=0.5) as trickle:
        assert "without an adapter" in hotdraft("adapters", "rollback", "--config", config_path)
        wait_for("the rollback", lambda: server.draft_version == 0, 20)
        assert server.ask(700).draft_version == 0
        assert server.metric("hotdraft_rollbacks_total") == 1
        hotdraft("adapters", "promote", "1", "--config", config_path, "--reason", "it was good")
        wait_for("the promotion", lambda: server.draft_version == 1, 20)
        assert server.ask(701).draft_version == 1
        assert "not pinned" in hotdraft("adapters", "unpin", "--config", config_path)
    assert not trickle.failures


@pytest.mark.usefixtures("learned")
def test_serving_outlives_its_trainer_and_the_job_is_finished(server: Server, config: HotdraftConfig) -> None:
    records, trainer = JobRecords(config.run_dir), server.trainer_pid()
    assert trainer is not None
    server.ask_many(SECOND)
    with Trickle(server, first=3000, pause=0.2) as trickle:
        wait_for("a second job at work", lambda: (job := records.running()) and job.work, 60)
        kill(trainer)
        wait_for("the trainer's end", lambda: not is_running(trainer))
        job = records.unfinished()
        assert job is not None
        wait_for("a new trainer", lambda: server.metric("hotdraft_trainer_restarts_total") >= 1, 30)
        answered = len(trickle.answers)

        def gone_on() -> Job | None:
            later = (other for other in records.jobs() if other.work is not None and other.work.id == job.id)
            return next((other for other in later if other.state in VERDICTS), None)

        finished = wait_for("the rest of the job", gone_on, 90)
    assert not trickle.failures
    assert len(trickle.answers) > answered > 0
    assert server.trainer_pid() != trainer
    assert finished.version == 2
    assert AdapterRegistry(config).version(2).tags["parent"] == "1"


@pytest.mark.usefixtures("learned")
def test_a_killed_server_comes_back_with_its_champion_and_its_buffer(
    server: Server, config: HotdraftConfig, config_path: Path
) -> None:
    trainer = server.trainer_pid()
    assert trainer is not None
    buffer = ReplayBuffer(config.replay_url)
    with Trickle(server, first=4000) as one, Trickle(server, first=5000) as other:
        time.sleep(1.5)
        server.kill()
    assert one.failures, "the server was killed in mid-traffic"
    assert one.answers
    assert other.answers
    wait_for("the trainer's end", lambda: not is_running(trainer), 10)
    committed = set(buffer.rows()["request_id"])
    requests = buffer.stats().requests
    champion = AdapterRegistry(config).champion()
    assert champion >= 1

    again = Server(config_path, config_path.with_name("again.log"), "--self-improve")
    try:
        assert again.draft_version == champion
        assert again.ask(6000).draft_version == champion
        assert set(buffer.rows()["request_id"]) >= committed
        assert again.stop() == 0, again.words()
    finally:
        again.kill()
    assert buffer.stats().requests == requests + 1, "what was served is written before the server ends"
    client = open_client(config)
    statuses = sorted(run.info.status for run in runs(client, config.tracking.serving_experiment))
    assert statuses == ["FINISHED", "KILLED"], "the next server ends the run of the one that was killed"
