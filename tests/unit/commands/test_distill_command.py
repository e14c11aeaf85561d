"""`hotdraft distill --once` as people and schedulers see it: what it prints and its exit codes."""

import json
import os
import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from hotdraft.cli import app
from hotdraft.pipeline.config.section import ConfigError
from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.training.fit.resume import JobInterruptedError
from hotdraft.training.online.context import JobCancelledError, JobError
from hotdraft.training.online.job import JobResult


@pytest.fixture
def hotdraft(tmp_path: Path):
    path = tmp_path / "c.yaml"
    path.write_text(f"target: t\ndraft: d\nrun_dir: {tmp_path / 'run'}\n")

    def run(*arguments: str):
        return CliRunner().invoke(app, ["distill", "--config", str(path), *arguments])

    return run


@pytest.fixture
def records(tmp_path: Path) -> JobRecords:
    return JobRecords(tmp_path / "run")


@pytest.fixture
def at_hangup():
    """`at_hangup(handler)` sets what SIGHUP does until the test ends, however the tests were started."""
    before = signal.getsignal(signal.SIGHUP)
    yield partial(signal.signal, signal.SIGHUP)
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def job_that(monkeypatch):
    """`job_that(act)` has every job be `act(stop)`, whose result or error ends it as `run_job` would."""

    def use(act):
        def run_job(config, *, job, stop, **_):
            with job:
                try:
                    result = act(stop)
                except (JobInterruptedError, JobCancelledError) as end:
                    job.end("cancelled" if isinstance(end, JobCancelledError) else "interrupted", str(end))
                    raise
                job.end("accepted" if result.verdict.accepted else "rejected", result.verdict.reason)
                return result

        monkeypatch.setattr("hotdraft.training.online.job.run_job", run_job)

    return use


def judged(accepted: bool):
    verdict = SimpleNamespace(accepted=accepted, reason="as measured", by_domain={})
    return lambda stop: JobResult(1, verdict.accepted, verdict, {"steps": 5.0}, "abc", 2.0)


@pytest.mark.parametrize(("accepted", "state"), [(True, "accepted"), (False, "rejected")])
def test_a_verdict_is_success_either_way(hotdraft, records, job_that, accepted, state):
    job_that(judged(accepted))
    shown = hotdraft("--once")
    assert shown.exit_code == 0
    assert state in shown.stdout
    told = hotdraft("--once", "--json")
    assert told.exit_code == 0
    job = json.loads(told.stdout)
    assert (job["origin"], job["state"], job["reason"]) == ("command", state, "as measured")
    assert job["id"] == records.jobs()[0].id


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (JobError("nothing to train on"), "failed"),
        (JobCancelledError("cancelled before its verdict"), "cancelled"),
    ],
)
def test_no_verdict_is_exit_code_1(hotdraft, job_that, error, state):
    def act(stop):
        raise error

    job_that(act)
    result = hotdraft("--json")
    assert result.exit_code == 1
    assert str(error) in result.stderr
    assert (json.loads(result.stdout)["state"], json.loads(result.stdout)["reason"]) == (state, str(error))


SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_once_and_is_as_before_afterwards(hotdraft, job_that, at_hangup, sent):
    at_hangup(signal.SIG_DFL)
    handlers = [signal.getsignal(number) for number in SIGNALS]

    def act(stop):
        assert not stop.is_set()
        os.kill(os.getpid(), sent)
        assert stop.wait(10)
        assert [signal.getsignal(number) for number in SIGNALS] == handlers
        raise JobInterruptedError("the job was asked to stop at step 3")

    job_that(act)
    result = hotdraft("--json")
    assert result.exit_code == 1
    assert "goes on from there" in result.stderr
    assert json.loads(result.stdout)["state"] == "interrupted"
    assert [signal.getsignal(number) for number in SIGNALS] == handlers


def test_under_nohup_a_job_outlives_its_terminal(hotdraft, job_that, at_hangup):
    at_hangup(signal.SIG_IGN)

    def act(stop):
        os.kill(os.getpid(), signal.SIGHUP)
        assert not stop.wait(0.1)
        raise JobInterruptedError("enough")

    job_that(act)
    assert "enough" in hotdraft("--json").stderr


@pytest.mark.parametrize("handed", [False, True])
def test_a_job_whose_buffer_cannot_be_opened_failed_and_says_why(hotdraft, records, tmp_path, monkeypatch, handed):
    (tmp_path / "no-folder").touch()
    monkeypatch.setenv("HOTDRAFT_REPLAY__URL", str(tmp_path / "no-folder" / "replay"))
    begun = records.begin("api") if handed else None
    result = hotdraft(*(() if begun is None else ("--job", begun.id, "--lock", str(begun.fileno()))))
    if begun is not None:
        begun.hand_over()
    assert isinstance(result.exception, ConfigError), "which is code 2 and one line"
    [job] = records.jobs()
    assert (job.state, job.reason) == ("failed", str(result.exception))


def test_while_another_job_runs_none_begins(hotdraft, records, job_that):
    job_that(judged(True))
    running = records.begin("loop")
    result = hotdraft("--once")
    assert result.exit_code == 1
    assert running.id in result.stderr
    assert [job.id for job in records.jobs()] == [running.id]


def test_a_job_that_was_begun_for_this_process_is_run(hotdraft, records, job_that):
    job_that(judged(True))
    begun = records.begin("api")
    assert hotdraft("--once", "--job", begun.id).exit_code == 1, "not without its lock"
    assert records.get(begun.id).state == "running"
    assert hotdraft("--once", "--job", begun.id, "--lock", str(begun.fileno())).exit_code == 0
    assert (records.get(begun.id).origin, records.get(begun.id).state) == ("api", "accepted")
