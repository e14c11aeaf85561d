"""Jobs that are cancelled, tried too often or of another recipe: what they left is dropped."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from hotdraft.pipeline.config.settings import HotdraftConfig, merged
from hotdraft.pipeline.loop.job_record import JobWork
from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.store.connection import StoreError, open_client
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.online.context import JobCancelledError
from hotdraft.training.online.job import run_job
from hotdraft.training.online.unfinished import recipe
from tests.unit.training.online.jobs import StopAfter, folders, interrupted, left, with_distill

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]


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


@pytest.mark.parametrize("reservoir", [0, 64], ids=["gone", "kept in the reservoir"])
def test_a_job_whose_newest_request_left_the_shards_is_dropped_though_others_came(config, serve, target, reservoir):
    """Nothing tells any more which of what is there it was to learn from, and which the next."""
    buffer = ReplayBuffer(config.replay_url, max_bytes=640_000, reservoir_requests=reservoir)
    *others, newest = serve(target, 40)
    buffer.append([*others, replace(newest, domain="its own")])
    interrupted(config, buffer)
    for turn, count in enumerate((160, 160, 160, 60)):
        buffer.append(serve(target, count, prefix=f"new{turn}-", seed=1 + turn))
    assert ("r39" in buffer.rows()["request_id"]) == bool(reservoir)
    with pytest.raises(JobCancelledError, match="what it began with is gone"):
        run_job(config, buffer=buffer, registry=AdapterRegistry(config))
    assert interrupted(config, buffer).work.last_request == "new3-59"


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


def test_what_another_user_left_and_nobody_else_can_delete_stops_no_job(config, buffer, monkeypatch, caplog):
    foreign = config.run_dir / "jobs" / "20260101-000000-abcdef"
    foreign.mkdir(parents=True)
    rmtree = shutil.rmtree

    def refuse(folder, **options):
        if folder == foreign:
            raise PermissionError(13, "Permission denied", str(folder))
        rmtree(folder, **options)

    monkeypatch.setattr("hotdraft.training.online.begin.shutil.rmtree", refuse)
    short = with_distill(config, max_steps=2)
    assert run_job(short, buffer=buffer, registry=AdapterRegistry(config)).version == 1
    assert f"what job {foreign.name} left could not be deleted: [Errno 13] Permission denied" in caplog.text
    assert folders(config) == {foreign.name}


def test_what_older_versions_left_is_swept(config, buffer):
    jobs = config.run_dir / "jobs"
    (jobs / "20260101-000000-abcdef" / "checkpoints").mkdir(parents=True)
    (jobs / "20260101-000000-abcdef" / "job.json").write_text("{")
    (jobs / "last.json").write_text("{")
    assert JobRecords(config.run_dir).last_job() is None
    then = interrupted(config, buffer)
    assert folders(config) == {then.id}
