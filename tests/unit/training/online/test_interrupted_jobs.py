"""Jobs that are stopped, killed, or whose store goes away, and what the next makes of them."""

import os
import shutil
import signal
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hotdraft.pipeline.loop.job_record import RunningJob
from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.pipeline.processes.stop_signals import stopped_by_signals
from hotdraft.pipeline.replay.rows import ReplayRows
from hotdraft.pipeline.replay.schema import table_of
from hotdraft.pipeline.store.connection import StoreError, open_client
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.batches.mixture import save_mixture
from hotdraft.training.fit.resume import JobInterruptedError, ResumePoint
from hotdraft.training.online.job import run_job
from hotdraft.training.online.unproven import Unproven
from tests.unit.training.online.jobs import StopAfter, folders, interrupted, left, with_distill

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]


def waiting(config, seconds):
    """`config` whose gate asks for more prompts than there are and waits so long for them."""
    gate = {"wait_seconds": seconds, "min_prompts": 40}
    return config.model_copy(update={"gate": config.gate.model_copy(update=gate)})


def test_a_stopped_job_is_finished_by_the_next_and_not_begun_again(config, buffer, serve, target):
    registry = AdapterRegistry(config)
    with pytest.raises(JobInterruptedError, match="step 3"):
        run_job(config, buffer=buffer, registry=registry, stop=StopAfter(6))
    was = left(config)
    assert was is not None
    buffer.append(serve(target, 5, prefix="late"))
    result = run_job(config, buffer=buffer, registry=registry)
    assert result.run_id == was.run_id
    assert result.metrics["steps"] == 40
    assert left(config) is None
    last = JobRecords(config.run_dir).last_job()
    assert (last.request, last.promoted) == ("r39", result.promoted)
    finished, stopped = JobRecords(config.run_dir).jobs()
    assert (stopped.state, stopped.run_id, stopped.version) == ("interrupted", was.run_id, None)
    assert "step 3" in stopped.reason
    assert (finished.state, finished.run_id, finished.version) == ("accepted", was.run_id, result.version)
    assert (finished.work.id, stopped.work) == (stopped.id, was.work)
    assert not folders(config)
    assert (finished.origin, finished.reason) == ("command", result.verdict.reason)
    assert finished.metrics["gain"] == result.verdict.gain
    assert finished.metrics["steps"] == 40
    assert stopped.started_at < stopped.ended_at < finished.started_at < finished.ended_at


def test_two_trainers_of_one_registry_are_told_of_each_other(config, buffer, tmp_path, caplog):
    def begin(config):
        with pytest.raises(JobInterruptedError):
            run_job(config, buffer=buffer, registry=AdapterRegistry(config), stop=StopAfter(6))
        open_client(config).update_run(left(config).run_id, status="RUNNING")  # as it is in another process
        return left(config).work.id

    def told():
        return [record.message for record in caplog.records if "one trainer is enough" in record.message]

    first = begin(config)
    begin(config)
    assert not told(), "a job that is gone on with is no other"
    shared = config.tracking.model_copy(update={"uri": config.tracking_uri})
    for folder, tracking in (
        ("another pair's", shared.model_copy(update={"registered_model": "another"})),
        ("another", shared),
    ):
        assert not told()
        begin(config.model_copy(update={"run_dir": tmp_path / folder, "tracking": tracking}))
    [said] = told()
    assert first in said


@pytest.mark.parametrize("hears", [stopped_by_signals, nullcontext], ids=["its command hears", "nobody else hears"])
def test_a_job_keeps_its_steps_whenever_the_signal_comes(config, buffer, monkeypatch, hears):
    """Also between the look for it at a step's end and the next step."""
    look = ResumePoint.on_train_batch_end

    def look_and_press(resume, trainer, *batch):
        look(resume, trainer, *batch)
        if trainer.global_step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch, hears() as stop:
        patch.setattr(ResumePoint, "on_train_batch_end", look_and_press)
        with pytest.raises(JobInterruptedError, match=r"asked to stop at step 4$"):
            run_job(config, buffer=buffer, registry=AdapterRegistry(config), stop=stop)
    assert signal.getsignal(signal.SIGTERM) is before
    kept = config.run_dir / "jobs" / left(config).work.id / "checkpoints" / "last.ckpt"
    assert torch.load(kept, weights_only=True)["global_step"] == 4


@pytest.mark.parametrize("max_seconds", [None, 1000.0])
@pytest.mark.parametrize("asked", [10, 11], ids=["before its candidates are judged", "while it waits for requests"])
def test_a_job_that_is_stopped_once_it_is_trained_is_not_trained_again(
    config, buffer, monkeypatch, asked, max_seconds
):
    """Its last step is none after which its state is written anyway."""
    steps, step = [], ResumePoint.on_train_batch_end
    monkeypatch.setattr(ResumePoint, "on_train_batch_end", lambda *told: steps.append(told) or step(*told))
    short, registry = with_distill(config, max_steps=6, max_seconds=max_seconds), AdapterRegistry(config)
    with pytest.raises(JobInterruptedError, match="before"):
        run_job(waiting(short, 60.0), buffer=buffer, registry=registry, stop=StopAfter(asked))
    assert run_job(waiting(short, 0.0), buffer=buffer, registry=registry).metrics["steps"] == 6
    assert len(steps) == 6


def test_a_job_that_is_stopped_once_it_is_judged_is_not_judged_again(config, buffer, monkeypatch):
    short, registry = with_distill(waiting(config, 0.0), max_steps=2), AdapterRegistry(config)
    with pytest.raises(JobInterruptedError, match="before the verdict was published"):
        run_job(short, buffer=buffer, registry=registry, stop=StopAfter(7))
    monkeypatch.setattr("hotdraft.training.online.job.compare", lambda *_: pytest.fail("judged again"))
    assert run_job(short, buffer=buffer, registry=registry).version == 1


def test_a_job_that_is_gone_on_with_behind_its_last_step_knows_its_loss(config, buffer, monkeypatch):
    """As the loss of its last step, when that was done."""
    told = []
    monkeypatch.setattr(RunningJob, "tell", lambda _, progress: told.append(progress))
    monkeypatch.setattr("hotdraft.training.fit.progress_bar.TELL_SECONDS", 0.0)
    registry = AdapterRegistry(config)
    with pytest.raises(JobInterruptedError, match="step 40"):
        run_job(config, buffer=buffer, registry=registry, stop=StopAfter(43))
    result = run_job(config, buffer=buffer, registry=registry)
    assert 0 < result.metrics["final_loss"] < told[0].loss
    assert open_client(config).get_run(result.run_id).data.metrics["final_loss"] == result.metrics["final_loss"]


def test_a_job_that_is_gone_on_with_learns_from_what_it_began_with_also_beside_a_mixture(
    config, buffer, serve, target
):
    known = ReplayRows.of(table_of(serve(target, 60, prefix="m", seed=5)))
    save_mixture(Path(config.draft), known.select(range(40)), known.select(range(40, 60)), 40, seed=0)
    registry = AdapterRegistry(config)
    with pytest.raises(JobInterruptedError):
        run_job(config, buffer=buffer, registry=registry, stop=StopAfter(6))
    buffer.append(serve(target, 40, prefix="late", seed=9))
    result = run_job(config, buffer=buffer, registry=registry)
    assert registry.version(result.version).tags["train_last_request"].startswith("r")
    assert result.verdict.requests > 20, "it is judged by what came since as well"


def test_a_store_that_goes_away_while_a_job_trains_costs_it_no_attempt(config, buffer, store):
    registry = AdapterRegistry(config)
    settings = with_distill(config, checkpoint_steps=10)
    store.goes_away("log_batch", call=3)
    for _ in range(4):
        with pytest.raises(StoreError):
            run_job(settings, buffer=buffer, registry=registry)
    was = left(settings)
    assert was is not None
    assert was.work.attempts == 0
    store.is_back()
    result = run_job(settings, buffer=buffer, registry=registry)
    assert (result.run_id, result.metrics["steps"]) == (was.run_id, 40)


def test_files_that_cannot_be_had_for_now_cost_a_job_no_attempt(config, buffer, monkeypatch):
    """Those of an earlier version, say, that the gate asks for after training."""

    def away(*_):
        raise StoreError("the bucket is away")

    with monkeypatch.context() as outage:
        outage.setattr("hotdraft.training.online.job.compare", away)
        with pytest.raises(StoreError):
            run_job(config, buffer=buffer, registry=AdapterRegistry(config))
    assert left(config).work.attempts == 0


@pytest.mark.parametrize("with_verdict", [False, True])
def test_a_job_whose_run_was_deleted_is_finished_with_another(config, buffer, store, with_verdict):
    registry = AdapterRegistry(config)
    if with_verdict:
        store.goes_away("log_artifacts")
        with pytest.raises(StoreError):
            run_job(config, buffer=buffer, registry=registry)
        store.is_back()
        was = left(config)
    else:
        was = interrupted(config, buffer)
    open_client(config).delete_run(was.run_id)
    result = run_job(config, buffer=buffer, registry=registry)
    assert result.version == registry.champion() == 1
    assert result.run_id != was.run_id
    assert open_client(config).get_run(result.run_id).info.status == "FINISHED"


def test_a_job_killed_once_its_run_was_made_leaves_none_running(config, buffer, monkeypatch):
    """Killed before it could write down which it was."""
    noted, note = [], RunningJob.note

    def killed_at_the_second(job, work=None, run_id=None):
        noted.append(run_id)
        if len(noted) == 2:
            raise SystemExit
        note(job, work, run_id)

    with monkeypatch.context() as patched:
        patched.setattr(RunningJob, "note", killed_at_the_second)
        with pytest.raises(SystemExit):
            run_job(config, buffer=buffer, registry=AdapterRegistry(config))
    was = left(config)
    assert (noted[0], was.run_id) == (None, None)
    then = interrupted(config, buffer)
    assert (then.work.id, then.run_id) == (was.id, noted[1]), "the next job goes on with it"

    with JobRecords(config.run_dir).begin("loop") as job:
        job.note(replace(was.work, attempts=3))
        job.hand_over()
    assert interrupted(config, buffer).work.id != was.id
    assert open_client(config).get_run(noted[1]).info.status == "KILLED"


@pytest.mark.parametrize("kill", ["before it takes over", "once it took over", "once it is judged"])
def test_a_job_that_goes_on_with_another_and_is_killed_too_is_gone_on_with(config, buffer, monkeypatch, kill):
    config, registry = with_distill(config, max_steps=2), AdapterRegistry(config)
    was = interrupted(config, buffer)
    at = {
        "before it takes over": "hotdraft.training.online.job.unfinished",
        "once it took over": "hotdraft.training.online.job.open_recorded",
        "once it is judged": "hotdraft.training.online.job.offer",
    }
    with monkeypatch.context() as patched:
        patched.setattr(at[kill], lambda *_: sys.exit())
        with pytest.raises(SystemExit):
            run_job(config, buffer=buffer, registry=registry)
    killed = JobRecords(config.run_dir).jobs()[0]
    owner = was.id if kill == "before it takes over" else killed.id
    assert (left(config).id, left(config).work.id, left(config).run_id) == (owner, was.work.id, was.run_id)
    assert run_job(config, buffer=buffer, registry=registry).run_id == was.run_id
    assert (left(config), folders(config)) == (None, set())


def test_a_verdict_on_record_counts_though_the_job_is_killed_before_its_folder_is_gone(config, buffer, monkeypatch):
    records = JobRecords(config.run_dir)
    killed, rmtree = records.begin("loop"), shutil.rmtree

    def kill(folder, **options):
        if folder == killed.work_folder:
            sys.exit()
        rmtree(folder, **options)

    with monkeypatch.context() as patched:
        patched.setattr("hotdraft.pipeline.loop.job_record.shutil.rmtree", kill)
        with pytest.raises(SystemExit):
            run_job(with_distill(config, max_steps=2), buffer=buffer, registry=AdapterRegistry(config), job=killed)
    killed.hand_over()  # its process has ended
    [job] = records.jobs()
    assert (job.version, folders(config)) == (1, {job.id})
    assert records.last_job().request == "r39"
    assert left(config) is None
    then = interrupted(config, buffer)
    assert folders(config) == {then.id}, "the next sweeps it"
    assert open_client(config).get_run(job.run_id).info.status == "FINISHED"


@pytest.mark.parametrize("content", [b"{", b"\xff", b'{"verdict": null}'], ids=repr)
def test_a_broken_verdict_is_reached_again(config, buffer, monkeypatch, content):
    config, registry = with_distill(config, max_steps=2), AdapterRegistry(config)
    with monkeypatch.context() as patched:
        patched.setattr(Unproven, "settle", lambda *_: sys.exit())
        with pytest.raises(SystemExit):
            run_job(config, buffer=buffer, registry=registry)
    was = left(config)
    (config.run_dir / "jobs" / was.work.id / "judged.json").write_bytes(content)
    assert run_job(config, buffer=buffer, registry=registry).run_id == was.run_id
