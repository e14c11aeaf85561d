"""When a job begins, and what it begins with."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from hotdraft.pipeline.loop.controls import ControlFile
from hotdraft.pipeline.loop.job_record import JobWork
from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.pipeline.models.names import ModelError
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.store.connection import StoreError
from hotdraft.pipeline.store.errors import RegistryError
from hotdraft.training.judging.resident import Resident
from hotdraft.training.online import follow as follow_module
from hotdraft.training.online.follow import follow
from tests.unit.training.online.following.polls import StopAfterPolls, Watch

pytestmark = pytest.mark.slow


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


def test_what_another_target_answered_begins_no_job(config, jobs, make_llama, serve, tiny_target):
    config = config.model_copy(update={"target": tiny_target})
    others = [replace(one, target_id="another") for one in serve(make_llama(0), 20)]
    ReplayBuffer(config.replay_url).append(others)
    follow(config, StopAfterPolls(3))
    assert jobs.count == 0


def test_what_came_while_a_job_ran_is_looked_at_without_a_wait(config, jobs, make_llama, serve):
    buffer, more = ReplayBuffer(config.replay_url), [serve(make_llama(seed), 20) for seed in (1, 0)]
    jobs.meanwhile = lambda: buffer.append(more.pop()) if more else None
    buffer.append(more.pop())
    follow(config, StopAfterPolls(1))
    assert jobs.count == 2


def test_memory_that_a_job_took_is_given_back_before_the_next(config, jobs, make_llama, serve, monkeypatch):
    buffer, more, given_back = ReplayBuffer(config.replay_url), [serve(make_llama(seed), 20) for seed in (1, 0)], []
    jobs.meanwhile = lambda: buffer.append(more.pop()) if more else None
    collected: list[int] = []
    monkeypatch.setattr(follow_module.gc, "collect", lambda: collected.append(jobs.count))
    monkeypatch.setattr(follow_module, "give_back", lambda: given_back.append(collected[-1]))
    buffer.append(more.pop())
    follow(config, StopAfterPolls(1))
    assert given_back == [1, 2]


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


def test_warming_up_begins_anew_once_the_store_is_back_and_not_while_the_loop_is_off(config, monkeypatch, caplog):
    caplog.set_level("INFO")
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
    assert caplog.text.count("what they waited for is back") == 1


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
