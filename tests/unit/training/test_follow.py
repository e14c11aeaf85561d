import threading
from types import SimpleNamespace

import pytest

from pipeline.config import HotdraftConfig
from pipeline.replay import ReplayBuffer
from training import follow as follow_module
from training.follow import follow
from training.job import JobError
from training.run import JobInterruptedError


@pytest.fixture
def config(tmp_path):
    return HotdraftConfig(
        target="t",
        draft="d",
        run_dir=tmp_path,
        replay={"held_out_fraction": 0.3},
        gate={"min_requests": 2},
        distill={"trigger": {"min_new_requests": 5, "min_new_rejected": 5, "poll_seconds": 0.01}},
    )


class StopAfterPolls(threading.Event):
    def __init__(self, polls: int) -> None:
        super().__init__()
        self.polls = polls

    def wait(self, timeout: float | None = None) -> bool:
        self.polls -= 1
        if self.polls == 0:
            self.set()
        return super().wait(timeout)


@pytest.fixture
def jobs(monkeypatch):
    """Calls of `run_job`, each ending as the list `outcomes` says."""
    calls = SimpleNamespace(count=0, outcome=None)

    def run_job(config, **kwargs):
        calls.count += 1
        if calls.outcome is not None:
            raise calls.outcome
        return SimpleNamespace(version=1, seconds=0.0, verdict=SimpleNamespace(accepted=True, reason="better"))

    monkeypatch.setattr(follow_module, "run_job", run_job)
    return calls


def test_waits_for_traffic_and_runs_one_job_for_it(config, jobs, make_llama, serve):
    follow(config, StopAfterPolls(3))
    assert jobs.count == 0
    ReplayBuffer(config.replay_url).append(serve(make_llama(0), 20))
    follow(config, StopAfterPolls(3))
    assert jobs.count == 1


def test_a_job_that_cannot_start_is_logged_and_following_goes_on(config, jobs, make_llama, serve, caplog):
    ReplayBuffer(config.replay_url).append(serve(make_llama(0), 20))
    jobs.outcome = JobError("no draft")
    follow(config, StopAfterPolls(3))
    assert jobs.count == 1
    assert "no draft" in caplog.text


def test_an_interrupted_job_ends_following(config, jobs, make_llama, serve):
    ReplayBuffer(config.replay_url).append(serve(make_llama(0), 20))
    jobs.outcome = JobInterruptedError("asked to stop")
    stop = StopAfterPolls(50)
    follow(config, stop)
    assert stop.polls == 50
