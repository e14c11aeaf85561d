"""Jobs that are stopped, cancelled, killed, or whose store goes away."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from hotdraft.pipeline.config.settings import HotdraftConfig, merged
from hotdraft.pipeline.loop.job_record import JobWork, RunningJob
from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.pipeline.replay.rows import ReplayRows
from hotdraft.pipeline.replay.schema import table_of
from hotdraft.pipeline.store.connection import StoreError, open_client
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.batches.mixture import save_mixture
from hotdraft.training.fit.resume import JobInterruptedError
from hotdraft.training.online.context import JobCancelledError
from hotdraft.training.online.job import run_job
from hotdraft.training.online.unfinished import recipe, unfinished
from hotdraft.training.online.unproven import Unproven
from tests.unit.training.online.jobs import StopAfter, with_distill

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]


def left(config):
    """The job that the next one goes on with."""
    return unfinished(JobRecords(config.run_dir), config)


def folders(config):
    return {path.name for path in (config.run_dir / "jobs").glob("????????-??????-??????")}


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


def test_a_job_whose_requests_are_gone_is_dropped_and_the_next_begins_anew(config, buffer, serve, target):
    was = interrupted(config, buffer)
    for name in buffer.shards():
        (Path(config.replay_url) / name).unlink()
    buffer.append([replace(one, request_id="r39") for one in serve(target, 1, prefix="x")])
    buffer.append(serve(target, 40, prefix="new", seed=9))
    with pytest.raises(JobCancelledError, match="what it began with is gone"):
        run_job(config, buffer=buffer, registry=AdapterRegistry(config))
    assert left(config) is None
    then = interrupted(config, buffer)
    assert (then.work.id != was.work.id, then.work.last_request) == (True, "new39")
    assert open_client(config).get_run(was.run_id).info.status == "KILLED"


class CancelAfter(StopAfter):
    """Never says stop; cancels the job that runs, as another process would, at the n-th time it is asked."""

    def __init__(self, steps: int, records: JobRecords) -> None:
        super().__init__(steps)
        self.records = records

    def is_set(self) -> bool:
        if super().is_set() and self.records.running().state == "running":
            self.records.cancel(self.records.running().id)
        return False


@pytest.mark.parametrize(("asked", "stage"), [(1, "draft"), (3, "training"), (20, "steps"), (44, "gate")])
def test_a_cancelled_job_is_dropped(config, buffer, asked, stage):
    registry, records = AdapterRegistry(config), JobRecords(config.run_dir)
    with pytest.raises(JobCancelledError):
        run_job(config, buffer=buffer, registry=registry, stop=CancelAfter(asked, records))
    [job] = records.jobs()
    assert job.state == "cancelled"
    run = open_client(config).get_run(job.run_id)
    assert run.info.status == "KILLED"
    assert ("loss" in run.data.metrics) == (stage in ("steps", "gate"))
    assert left(config) is None
    assert not folders(config)
    assert records.last_job() is None
    assert registry.versions() == []
    assert records.running() is None


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


@pytest.mark.parametrize(
    "change",
    [
        {"target": "other"},
        {"draft": "weights"},
        {"dtype": "bfloat16"},
        {"engine": {"draft_vocab_size": 16}},
        {"replay": {"held_out_fraction": 0.31}},
        {"gate": {"max_domain_loss": 0.06}},
        {"distill": {"window_requests": 45}},
    ],
    ids=lambda change: str(*change),
)
def test_a_job_begun_under_another_recipe_is_not_gone_on_with(config, change):
    with JobRecords(config.run_dir).begin("loop") as job:
        job.note(JobWork(job.id, recipe(config), last_request="r1", parent_version=0), "run")
        job.work_folder.mkdir()
        job.end("interrupted", "asked to stop")
    assert left(config) is not None
    same = {"distill": {"nice": 19, "threads": 2, "share": 0.5}, "gate": {"wait_seconds": 1}, "server": {"port": 1}}
    told = config.model_dump(mode="json")
    assert left(HotdraftConfig(**merged(told, same))) is not None
    if change == {"draft": "weights"}:  # under the same name
        weights = load_file(Path(config.draft) / "model.safetensors")
        name = min(weights)
        save_file({**weights, name: weights[name] + 1}, Path(config.draft) / "model.safetensors")
        change = {}
    assert left(HotdraftConfig(**merged(told, change))) is None


@pytest.mark.parametrize("why", ["other settings", "died 3 times"])
def test_a_job_that_keeps_dying_or_was_begun_with_other_settings_is_dropped(config, buffer, why):
    settings = with_distill(config, max_steps=2) if why == "other settings" else config
    was = interrupted(config, buffer)
    client = open_client(config)
    assert client.get_run(was.run_id).info.status == "RUNNING", "it is to be gone on with"
    if why == "died 3 times":
        with JobRecords(config.run_dir).begin("loop") as job:
            job.note(replace(was.work, attempts=3), was.run_id)
            job.hand_over()  # as if its process had ended
    assert left(settings) is None
    assert folders(config) == {was.work.id}, "looking drops nothing"
    then = interrupted(settings, buffer)
    assert folders(config) == {then.work.id} != {was.work.id}
    assert client.get_run(was.run_id).info.status == "KILLED"
    assert then.run_id != was.run_id


def test_a_job_that_is_killed_again_and_again_is_tried_three_times(config, buffer, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("hotdraft.training.online.job.train_candidates", lambda *_: sys.exit())
        for _ in range(3):
            with pytest.raises(SystemExit):
                run_job(config, buffer=buffer, registry=AdapterRegistry(config))
    assert [job.work.attempts for job in JobRecords(config.run_dir).jobs()] == [3, 2, 1]
    assert left(config) is None


def test_a_verdict_that_cannot_be_told_is_tried_thrice_unless_the_store_is_away(config, buffer, monkeypatch, store):
    """Of a champion that moved meanwhile, say, beside which there is no memory to judge again."""
    config, registry = with_distill(config, max_steps=2), AdapterRegistry(config)
    store.goes_away("log_artifacts")
    for _ in range(4):
        with pytest.raises(StoreError):
            run_job(config, buffer=buffer, registry=registry)
    store.is_back()
    assert left(config).work.attempts == 0
    with monkeypatch.context() as patched:
        patched.setattr("hotdraft.training.online.job.offer", lambda *_: sys.exit())
        for attempts in (1, 2, 3):
            with pytest.raises(SystemExit):
                run_job(config, buffer=buffer, registry=registry)
            assert JobRecords(config.run_dir).jobs()[0].work.attempts == attempts
    assert left(config) is None


def interrupted(config, buffer):
    """What a job leaves that is stopped before it trains."""
    with pytest.raises(JobInterruptedError):
        run_job(config, buffer=buffer, registry=AdapterRegistry(config), stop=StopAfter(1))
    return left(config)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff", b'{"id": 5}', b"../records", b"20260101-000000-abcdef/.."], ids=repr
)
def test_a_job_whose_record_is_broken_is_swept_and_its_run_ended(config, buffer, caplog, content):
    was = interrupted(config, buffer)
    path = config.run_dir / "jobs" / "records" / f"{was.id}.json"
    if b".." in content:  # a folder that is no job's is none of ours to delete
        content = path.read_bytes().replace(
            b'"work": {\n    "id": "' + was.id.encode(), b'"work": {"id": "' + content
        )
        assert b".." in content
    path.write_bytes(content)
    assert left(config) is None
    then = interrupted(config, buffer)
    assert any(str(path) in record.message for record in caplog.records)
    assert folders(config) == {then.work.id} != {was.work.id}
    assert path.read_bytes() == content, "it is named, and stays to be looked at"
    assert open_client(config).get_run(was.run_id).info.status == "KILLED"
    assert then.run_id != was.run_id


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


def test_what_older_versions_left_is_swept(config, buffer):
    jobs = config.run_dir / "jobs"
    (jobs / "20260101-000000-abcdef" / "checkpoints").mkdir(parents=True)
    (jobs / "20260101-000000-abcdef" / "job.json").write_text("{")
    (jobs / "last.json").write_text("{")
    assert JobRecords(config.run_dir).last_job() is None
    then = interrupted(config, buffer)
    assert folders(config) == {then.id}


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
