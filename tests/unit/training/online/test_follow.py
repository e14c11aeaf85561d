import threading
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from mlflow.exceptions import MlflowException

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.controls import ControlFile
from hotdraft.pipeline.loop.job_record import Burst, JobWork
from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.pipeline.models.draft_vocabulary import VocabularyError
from hotdraft.pipeline.models.names import ModelError
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.store.connection import StoreError
from hotdraft.pipeline.store.errors import RegistryError
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.fit.resume import JobInterruptedError
from hotdraft.training.judging.resident import Resident
from hotdraft.training.online import follow as follow_module
from hotdraft.training.online.context import JobCancelledError, JobError, JobGaveWayError
from hotdraft.training.online.follow import follow

pytestmark = pytest.mark.slow


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
    calls = SimpleNamespace(count=0, outcome=None, outages=0, meanwhile=lambda: None)

    def run_job(config, *, job, **kwargs):
        calls.count += 1
        with job:
            if calls.outages:
                calls.outages -= 1
                raise StoreError("the store is away")
            if calls.outcome is not None:
                raise calls.outcome
            calls.meanwhile()
            job.end("accepted", "better", version=1, promoted=True)
        return SimpleNamespace(promoted=True)

    monkeypatch.setattr(follow_module, "run_job", run_job)
    return calls


def test_waits_for_traffic_and_runs_one_job_for_it(config, jobs, make_llama, serve, caplog):
    caplog.set_level("INFO")
    follow(config, StopAfterPolls(3))
    assert jobs.count == 0
    assert caplog.text.count(f"following what is recorded in {config.replay_url}") == 1, (
        "it may say no more for hours"
    )
    ReplayBuffer(config.replay_url).append(serve(make_llama(0), 20))
    follow(config, StopAfterPolls(3))
    assert jobs.count == 1


def test_what_came_while_a_job_ran_is_looked_at_without_a_wait(config, jobs, make_llama, serve):
    buffer, more = ReplayBuffer(config.replay_url), [serve(make_llama(seed), 20) for seed in (1, 0)]
    jobs.meanwhile = lambda: buffer.append(more.pop()) if more else None
    buffer.append(more.pop())
    follow(config, StopAfterPolls(1))
    assert jobs.count == 2


@pytest.mark.parametrize("error", [ModelError("no such draft"), RegistryError("version 3 is gone")])
def test_a_trainer_that_cannot_warm_up_goes_on(config, jobs, make_llama, serve, monkeypatch, caplog, error):
    def fail(*_):
        raise error
        yield

    monkeypatch.setattr(Resident, "warm", fail)
    buffer = ReplayBuffer(config.replay_url)
    follow(config, Watch(4, 2, lambda: buffer.append(serve(make_llama(0), 20))))
    assert caplog.text.count(f"the first job will begin cold: {error}") == 1
    assert jobs.count == 1


def test_warming_up_begins_anew_once_the_store_is_back_and_not_while_the_loop_is_off(config, monkeypatch):
    begun, outages = [], [StoreError("the store is away")]

    def warm(*_):
        begun.append(True)
        if outages:
            raise outages.pop()
        yield

    monkeypatch.setattr(Resident, "warm", warm)
    ControlFile(config.run_dir).switch_loop(on=False)
    follow(config, StopAfterPolls(3))
    assert not begun
    ControlFile(config.run_dir).switch_loop(on=True)
    follow(config, StopAfterPolls(3))
    assert len(begun) == 2


def test_a_job_that_is_due_does_not_wait_for_the_rest_of_warming_up(config, jobs, make_llama, serve, monkeypatch):
    buffer, done = ReplayBuffer(config.replay_url), []

    def warm(*_):
        for bit in range(1000):
            if bit == 2:
                buffer.append(serve(make_llama(0), 20))
            done.append(jobs.count)
            yield

    monkeypatch.setattr(Resident, "warm", warm)
    follow(config, StopAfterPolls(1))
    assert done == [0, 0, 0, *[1] * 997], "without a wait between two bits, but for the job"


@pytest.mark.parametrize("outcome", [JobError("no draft"), JobCancelledError("cancelled")])
def test_a_job_without_a_verdict_is_logged_and_following_goes_on(config, jobs, make_llama, serve, caplog, outcome):
    buffer = ReplayBuffer(config.replay_url)
    buffer.append(serve(make_llama(0), 20))
    jobs.outcome = outcome

    class MoreTraffic(StopAfterPolls):
        def wait(self, timeout=None):
            if self.polls == 10:
                assert jobs.count == 1, "the trigger counts anew"
                buffer.append(serve(make_llama(0), 20, prefix="late"))
            return super().wait(timeout)

    follow(config, MoreTraffic(20))
    assert jobs.count == 2
    assert str(outcome) in caplog.text
    assert {job.origin for job in JobRecords(config.run_dir).jobs()} == {"loop"}


def test_a_draft_that_is_gone_ends_the_job_and_not_the_trainer(config, make_llama, serve, tmp_path, caplog):
    """Nor does it when the trainer starts with a job to go on with."""
    config = config.model_copy(update={"draft": str(tmp_path / "gone")})
    ReplayBuffer(config.replay_url).append(serve(make_llama(0), 20))
    stop = StopAfterPolls(20)
    follow(config, stop)
    assert stop.polls == 0
    [job] = JobRecords(config.run_dir).jobs()
    assert (job.state, job.reason) == ("failed", f"no model folder at {config.draft!r}")
    assert f"no verdict on job {job.id}: {job.reason}" in caplog.text

    left = JobRecords(config.run_dir).begin("loop")
    left.note(JobWork(left.id, "recipe", last_request="r19", parent_version=0))
    left.work_folder.mkdir()
    left.end("interrupted", "asked to stop")
    follow(config, StopAfterPolls(4))
    assert caplog.text.count(f"{job.reason}; jobs wait for it") == 1


@pytest.mark.parametrize("error", [ModelError("attention with sinks"), VocabularyError("broken ranking")])
def test_what_a_draft_cannot_do_fails_its_job_in_a_line(config, make_llama, serve, monkeypatch, error):
    def load(*_):
        raise error

    monkeypatch.setattr(Resident, "draft", load)
    make_llama(0).save_pretrained(config.run_dir / "draft")
    config = config.model_copy(update={"draft": str(config.run_dir / "draft")})
    ReplayBuffer(config.replay_url).append(serve(make_llama(0), 20))
    stop = StopAfterPolls(20)
    follow(config, stop)
    assert stop.polls == 0
    [job] = JobRecords(config.run_dir).jobs()
    assert (job.state, job.reason) == ("failed", str(error))


def test_a_job_gives_way_to_a_burst_that_finds_all_that_there_is(config, make_llama, serve, monkeypatch):
    buffer, jobs = ReplayBuffer(config.replay_url), []
    buffer.append(played(serve(make_llama(0), 40), missed=4))
    trigger = config.distill.trigger.model_copy(update={"min_new_rejected": 1, "drift_steps": 7})
    settings = config.model_copy(update={"distill": config.distill.model_copy(update={"trigger": trigger})})

    def run_job(config, *, job, burst, urgent, **kwargs):
        with job:
            jobs.append((burst, urgent))
            if len(jobs) == 1:
                assert urgent() is None
                buffer.append(played(serve(make_llama(0), 12, prefix="new"), missed=1))
                assert "acceptance of the newest" in urgent()
                raise JobGaveWayError(f"gave way: {urgent()}")
            job.end("accepted", "better", version=1, promoted=True)
        return SimpleNamespace(promoted=True)

    monkeypatch.setattr(follow_module, "run_job", run_job)
    follow(settings, StopAfterPolls(5))
    [(whole, _), (burst, nothing)] = jobs
    assert whole is None
    assert burst == Burst(7, 14)
    assert nothing is None, "a burst gives way to nothing"
    done, gave_way = JobRecords(config.run_dir).jobs()
    assert (done.state, gave_way.state) == ("accepted", "failed")


def test_a_job_asks_for_what_is_urgent_no_oftener_than_is_polled_and_a_buffer_that_is_away_ends_none(
    config, make_llama, serve, monkeypatch
):
    buffer, asked = ReplayBuffer(config.replay_url), []
    buffer.append(serve(make_llama(0), 20))
    trigger = config.distill.trigger.model_copy(update={"poll_seconds": 0.2})
    settings = config.model_copy(update={"distill": config.distill.model_copy(update={"trigger": trigger})})

    def away(*_, **__):
        asked.append(1)
        raise ConnectionError("try again")

    def run_job(config, *, job, urgent, **kwargs):
        with job, monkeypatch.context() as patched:
            patched.setattr(type(buffer), "news", away)
            assert {urgent() for _ in range(1000)} == {None}
            job.end("accepted", "better", version=1, promoted=True)
        return SimpleNamespace(promoted=True)

    monkeypatch.setattr(follow_module, "run_job", run_job)
    follow(settings, StopAfterPolls(2))
    assert 1 <= len(asked) <= 3


def played(samples, *, missed):
    """Answers every token of which was drafted, the first of each `missed` wrongly."""
    return [
        replace(s, drafted_ids=s.output_ids, accepted=np.arange(len(s.output_ids)) % missed > 0) for s in samples
    ]


def test_an_interrupted_job_ends_following(config, jobs, make_llama, serve):
    ReplayBuffer(config.replay_url).append(serve(make_llama(0), 20))
    jobs.outcome = JobInterruptedError("asked to stop")
    stop = StopAfterPolls(50)
    follow(config, stop)
    assert stop.polls == 50


class Watch(StopAfterPolls):
    """Does something at one of the polls."""

    def __init__(self, polls, at, act):
        super().__init__(polls)
        self.at, self.act = at, act

    def wait(self, timeout=None):
        if self.polls == self.at:
            self.act()
        return super().wait(timeout)


def test_no_job_begins_while_the_loop_is_off(config, jobs, make_llama, serve, caplog):
    caplog.set_level("INFO")
    ReplayBuffer(config.replay_url).append(serve(make_llama(0), 20))
    controls = ControlFile(config.run_dir)
    controls.switch_loop(False)

    def switch_on():
        assert jobs.count == 0
        controls.switch_loop(True)

    follow(config, Watch(20, 10, switch_on))
    assert jobs.count == 1, "what was recorded meanwhile counts"
    assert caplog.text.count("the loop is off") == caplog.text.count("the loop is on again") == 1


def test_a_job_of_another_process_is_waited_for_and_takes_what_was_due(config, jobs, make_llama, serve):
    ReplayBuffer(config.replay_url).append(serve(make_llama(0), 20))
    running = JobRecords(config.run_dir).begin("api")

    def finish():
        assert jobs.count == 0
        running.note(JobWork(running.id, "recipe", last_request="r19", parent_version=0))
        running.end("accepted", "better")

    follow(config, Watch(20, 10, finish))
    assert jobs.count == 0
    assert JobRecords(config.run_dir).last_job().request == "r19"


def test_a_cancelled_job_of_another_process_leaves_its_traffic_to_the_loop(config, jobs, make_llama, serve):
    ReplayBuffer(config.replay_url).append(serve(make_llama(0), 20))
    running = JobRecords(config.run_dir).begin("api")
    follow(config, Watch(20, 10, lambda: running.end("cancelled", "cancelled")))
    assert jobs.count == 1


def test_a_job_waits_for_a_store_that_goes_away_and_that_is_told_once(config, jobs, make_llama, serve, caplog):
    ReplayBuffer(config.replay_url).append(serve(make_llama(0), 20))
    jobs.outages = 3
    follow(config, StopAfterPolls(8))
    assert jobs.count == 4
    assert sum(record.name == follow_module.__name__ and "away" in record.message for record in caplog.records) == 1


def test_an_outage_puts_no_jobs_on_record(config, jobs, make_llama, serve, monkeypatch):
    ReplayBuffer(config.replay_url).append(serve(make_llama(0), 20))

    def refuse(registry):
        raise MlflowException("no route to the store")

    with monkeypatch.context() as outage:
        outage.setattr(AdapterRegistry, "champion", refuse)
        follow(config, StopAfterPolls(4))
    assert jobs.count == 0
    assert JobRecords(config.run_dir).jobs() == []
    follow(config, StopAfterPolls(4))
    assert jobs.count == 1


@pytest.mark.parametrize("by", ["hand", "another life"])
def test_what_came_since_a_job_fixed_what_it_learns_from_is_new_though_it_was_seen(
    config, jobs, make_llama, serve, monkeypatch, by
):
    """While a job by hand trained, or one was waiting to be gone on with."""
    target = make_llama(0)
    buffer = ReplayBuffer(config.replay_url)
    buffer.append(serve(target, 20))
    running = JobRecords(config.run_dir).begin("api")
    running.note(JobWork(running.id, "recipe", last_request="r19", parent_version=0))
    buffer.append(serve(target, 20, prefix="late", seed=3))
    if by == "hand":
        end = partial(running.end, "accepted", "better")
    else:
        monkeypatch.setattr(follow_module, "unfinished", lambda *_: running if not jobs.count else None)
        running.end("interrupted", "asked to stop")
        end = lambda: None  # noqa: E731

        def go_on(config, *, job, **_):
            jobs.count += 1
            with job:
                job.note(running.job.work if jobs.count == 1 else JobWork(job.id, "recipe", "late19", 0))
                job.end("accepted", "better", version=1, promoted=True)
            return SimpleNamespace(promoted=True)

        monkeypatch.setattr(follow_module, "run_job", go_on)
    follow(config, Watch(20, 10, end))
    assert jobs.count == (1 if by == "hand" else 2)
