"""What ends a job, or keeps one from its verdict, and leaves the trainer as it was."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from mlflow.exceptions import MlflowException

from hotdraft.pipeline.loop.job_record import Burst, JobWork
from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.pipeline.models.draft_vocabulary import VocabularyError
from hotdraft.pipeline.models.names import ModelError
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.fit.resume import JobInterruptedError
from hotdraft.training.judging.resident import Resident
from hotdraft.training.online import follow as follow_module
from hotdraft.training.online.context import JobCancelledError, JobError, JobGaveWayError
from hotdraft.training.online.follow import follow
from tests.unit.training.online.following.polls import StopAfterPolls

pytestmark = pytest.mark.slow


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


def test_a_job_that_is_gone_on_with_gives_way_to_a_burst_that_is_due_by_then(
    config, make_llama, serve, monkeypatch
):
    buffer, asked = ReplayBuffer(config.replay_url), []
    buffer.append(played(serve(make_llama(0), 40), missed=4))
    buffer.append(played(serve(make_llama(0), 12, prefix="new"), missed=1))
    monkeypatch.setattr(follow_module, "unfinished", lambda *_: "a job")

    def run_job(config, *, job, urgent, **kwargs):
        with job:
            asked.append(urgent and urgent())
            job.end("accepted", "better", version=1, promoted=True)
        return SimpleNamespace(promoted=True)

    monkeypatch.setattr(follow_module, "run_job", run_job)
    follow(config, StopAfterPolls(2))
    assert "acceptance of the newest" in asked[0]


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
