"""Jobs that are stopped, cancelled, killed, or whose store goes away."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from hotdraft.pipeline.config.settings import HotdraftConfig, merged
from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.pipeline.store.connection import StoreError, open_client
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.fit.resume import JobInterruptedError
from hotdraft.training.online.context import JobCancelledError
from hotdraft.training.online.job import run_job
from hotdraft.training.online.journal import JobJournal, JobState
from tests.unit.training.online.jobs import StopAfter, with_distill

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]


def test_a_stopped_job_is_finished_by_the_next_and_not_begun_again(config, buffer, serve, target):
    registry = AdapterRegistry(config)
    with pytest.raises(JobInterruptedError, match="step 3"):
        run_job(config, buffer=buffer, registry=registry, stop=StopAfter(6))
    (state,) = [JobJournal(config).unfinished()]
    assert state is not None
    buffer.append(serve(target, 5, prefix="late"))
    result = run_job(config, buffer=buffer, registry=registry)
    assert result.run_id == state.run_id
    assert result.metrics["steps"] == 40
    journal = JobJournal(config)
    assert journal.unfinished() is None
    last = journal.last_job()
    assert (last.request, last.accepted) == ("r39", result.verdict.accepted)
    finished, stopped = JobRecords(config.run_dir).jobs()
    assert (stopped.state, stopped.run_id, stopped.version) == ("interrupted", state.run_id, None)
    assert "step 3" in stopped.reason
    assert (finished.state, finished.run_id, finished.version) == ("accepted", state.run_id, result.version)
    assert (finished.origin, finished.reason) == ("command", result.verdict.reason)
    assert finished.metrics["gain"] == result.verdict.gain
    assert finished.metrics["steps"] == 40
    assert stopped.started_at < stopped.ended_at < finished.started_at < finished.ended_at


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
    journal = JobJournal(config)
    assert journal.unfinished() is None
    assert journal.last_job() is None
    assert registry.versions() == []
    assert records.running() is None


def test_a_store_that_goes_away_while_a_job_trains_costs_it_no_attempt(config, buffer, store):
    registry = AdapterRegistry(config)
    settings = with_distill(config, checkpoint_steps=10)
    store.goes_away("log_batch", call=3)
    for _ in range(4):
        with pytest.raises(StoreError):
            run_job(settings, buffer=buffer, registry=registry)
    state = JobJournal(settings).unfinished()
    assert state is not None
    assert state.attempts == 0
    store.is_back()
    result = run_job(settings, buffer=buffer, registry=registry)
    assert (result.run_id, result.metrics["steps"]) == (state.run_id, 40)


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
    journal = JobJournal(config)
    journal.save(JobState("job", journal.recipe, last_request="r1", parent_version=0, run_id="run"))
    assert JobJournal(config).unfinished() is not None
    same = {"distill": {"nice": 19, "threads": 2, "share": 0.5}, "gate": {"wait_seconds": 1}, "server": {"port": 1}}
    told = config.model_dump(mode="json")
    assert JobJournal(HotdraftConfig(**merged(told, same))).unfinished() is not None
    if change == {"draft": "weights"}:  # under the same name
        weights = load_file(Path(config.draft) / "model.safetensors")
        name = min(weights)
        save_file({**weights, name: weights[name] + 1}, Path(config.draft) / "model.safetensors")
        change = {}
    assert JobJournal(HotdraftConfig(**merged(told, change))).unfinished() is None


@pytest.mark.parametrize("why", ["other settings", "died 3 times"])
def test_a_job_that_keeps_dying_or_was_begun_with_other_settings_is_dropped(config, buffer, why):
    registry = AdapterRegistry(config)
    with pytest.raises(JobInterruptedError):
        run_job(config, buffer=buffer, registry=registry, stop=StopAfter(1))
    client, journal = open_client(config), JobJournal(config)
    state = journal.unfinished()
    assert client.get_run(state.run_id).info.status == "RUNNING", "it is to be gone on with"
    settings = with_distill(config, max_steps=2)
    if why == "died 3 times":
        settings = config
        journal.save(replace(state, attempts=3))
    assert JobJournal(settings).unfinished() is None
    folder = journal.job_folder(state)
    assert folder.exists(), "looking drops nothing"
    with pytest.raises(JobInterruptedError):
        run_job(settings, buffer=buffer, registry=registry, stop=StopAfter(1))
    assert not folder.exists()
    assert client.get_run(state.run_id).info.status == "KILLED"
    assert JobJournal(settings).unfinished().run_id != state.run_id


BROKEN = [b"", b"{", b"[]", b"\xff", b'{"job_id": 5}', b'{"last_request": null}']


@pytest.mark.parametrize("content", BROKEN, ids=repr)
def test_a_broken_account_of_the_last_job_is_set_aside_and_told_once(config, caplog, content):
    journal = JobJournal(config)
    path = journal.folder / "last.json"
    path.write_bytes(content)
    assert [journal.last_job(), JobJournal(config).last_job()] == [None, None]
    assert [str(path) in record.message for record in caplog.records] == [True]
    assert path.with_name("last.json.broken").read_bytes() == content


@pytest.mark.parametrize("content", [*BROKEN[:4], b'{"job_id": "../records", "recipe": "RECIPE"}'], ids=repr)
def test_a_job_whose_state_is_broken_is_swept_and_its_run_ended(config, buffer, caplog, content):
    registry = AdapterRegistry(config)
    with pytest.raises(JobInterruptedError):
        run_job(config, buffer=buffer, registry=registry, stop=StopAfter(1))
    client, journal = open_client(config), JobJournal(config)
    state = journal.unfinished()
    path = journal.job_folder(state) / "job.json"
    path.write_bytes(content)
    assert journal.unfinished() is None
    with pytest.raises(JobInterruptedError):
        run_job(config, buffer=buffer, registry=registry, stop=StopAfter(1))
    assert len([record for record in caplog.records if str(path) in record.message]) == 1
    assert not path.parent.exists()
    assert (journal.folder / f"{state.job_id}-job.json.broken").read_bytes() == content
    assert client.get_run(state.run_id).info.status == "KILLED"
    assert journal.unfinished().run_id != state.run_id


def test_a_job_killed_once_its_run_was_made_leaves_none_running(config, buffer, monkeypatch):
    """Killed before it could write down which it was."""
    registry, saved = AdapterRegistry(config), []
    save = JobJournal.save

    def killed_at_the_second(journal, state):
        saved.append(state)
        if len(saved) == 2:
            raise SystemExit
        save(journal, state)

    with monkeypatch.context() as patched:
        patched.setattr(JobJournal, "save", killed_at_the_second)
        with pytest.raises(SystemExit):
            run_job(config, buffer=buffer, registry=registry, stop=StopAfter(1))
    journal = JobJournal(config)
    assert (saved[0].run_id, journal.unfinished().run_id) == ("", "")
    with pytest.raises(JobInterruptedError):
        run_job(config, buffer=buffer, registry=registry, stop=StopAfter(1))
    assert journal.unfinished().run_id == saved[1].run_id, "the next job goes on with it"

    journal.save(replace(saved[0], attempts=3))
    with pytest.raises(JobInterruptedError):
        run_job(config, buffer=buffer, registry=registry, stop=StopAfter(1))
    assert open_client(config).get_run(saved[1].run_id).info.status == "KILLED"


def test_what_a_job_killed_while_its_folder_was_deleted_left_is_swept(config, buffer, monkeypatch):
    registry, journal = AdapterRegistry(config), JobJournal(config)

    def killed(folder, rmtree=shutil.rmtree, **options):
        if folder.parent.name != "dropped":
            return rmtree(folder, **options)
        (folder / "job.json").unlink()
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr("hotdraft.training.online.journal.shutil.rmtree", killed)
        with pytest.raises(SystemExit):
            run_job(with_distill(config, max_steps=2), buffer=buffer, registry=registry)
    half = journal.folder / "20260101-000000-abcdef"  # as older versions left them
    (half / "checkpoints").mkdir(parents=True)
    assert len(journal.leftovers()) == 2
    with pytest.raises(JobInterruptedError):
        run_job(config, buffer=buffer, registry=registry, stop=StopAfter(1))
    assert journal.leftovers() == []
    assert not half.exists()
    assert (journal.folder / "records").is_dir()


@pytest.mark.parametrize("content", [b"{", b"\xff", b'{"verdict": null}'], ids=repr)
def test_a_broken_verdict_is_reached_again(config, buffer, monkeypatch, content):
    config, registry = with_distill(config, max_steps=2), AdapterRegistry(config)
    with monkeypatch.context() as patched:
        patched.setattr(JobJournal, "finish", lambda *_, **__: sys.exit())
        with pytest.raises(SystemExit):
            run_job(config, buffer=buffer, registry=registry)
    journal = JobJournal(config)
    state = journal.unfinished()
    (journal.job_folder(state) / "judged.json").write_bytes(content)
    assert run_job(config, buffer=buffer, registry=registry).run_id == state.run_id
