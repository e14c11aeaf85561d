"""Records of jobs, seen by the process that runs one and by others."""

import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from hotdraft.pipeline.loop import jobs as jobs_module
from hotdraft.pipeline.loop.job_progress import JobProgress
from hotdraft.pipeline.loop.job_record import JobWork
from hotdraft.pipeline.loop.jobs import JobEndedError, JobRecords, JobRunningError, UnknownJobError

REPOSITORY = Path(__file__).parents[4]

HOLDER = """
import sys, time
from pathlib import Path
from hotdraft.pipeline.loop.jobs import JobRecords

job = JobRecords(Path(sys.argv[1])).begin("loop")
print(job.id, flush=True)
time.sleep(60)
"""


def test_a_job_from_its_beginning_to_its_verdict(records):
    assert records.jobs() == []
    job = records.begin("command")
    [running] = records.jobs()
    assert running == records.get(job.id) == records.running() == job.job
    assert (running.origin, running.state, running.ended_at) == ("command", "running", None)
    job.note(run_id="abc")
    assert records.get(job.id).run_id == "abc"
    with job:
        logging.getLogger("training.somewhere").warning("a step")
        job.end("accepted", "it is\nbetter", version=3, metrics={"gain": 0.1, "final_loss": float("nan")})
    ended = records.get(job.id)
    assert (ended.state, ended.version, ended.reason, ended.run_id) == ("accepted", 3, "it is better", "abc")
    assert ended.metrics == {"gain": 0.1}
    assert running.started_at <= ended.ended_at <= time.time()
    assert records.running() is None
    assert records.log_tail(job.id).endswith("WARNING training.somewhere: a step")
    logging.getLogger("training.somewhere").warning("afterwards")
    assert "afterwards" not in records.log_tail(job.id)


@pytest.mark.parametrize("handed", [False, True])
def test_a_job_takes_as_long_as_it_took_though_the_clock_is_set_back(records, monkeypatch, handed):
    clock = SimpleNamespace(time=1e9, monotonic=50.0)
    monkeypatch.setattr(time, "time", lambda: clock.time)
    monkeypatch.setattr(time, "monotonic", lambda: clock.monotonic)
    begun = job = records.begin("api")
    clock.time, clock.monotonic = 1e9 + 2, 52.0
    if handed:
        job = records.inherit(begun.id, begun.fileno())
        begun.hand_over()
    clock.time, clock.monotonic = 1e9 - 3600, 57.0
    job.end("rejected", "worse")
    ended = records.get(job.id)
    assert ended.ended_at - ended.started_at == 7
    assert records.begin("loop").job.started_at > ended.ended_at, "jobs run one after the other"


def test_a_running_job_says_how_far_it_is(records):
    job = records.begin("loop")
    assert records.get(job.id).progress is None
    job.tell(JobProgress(120, 480, 0.5234, 61.7))
    found = records.get(job.id)
    assert found.progress == JobProgress(120, 480, 0.5234, 61.7)
    assert str(found.progress) == "step 120 of 480, loss 0.523, about 62 s left"
    assert str(JobProgress(480, 480, None, 0.0)) == "step 480 of 480, being judged"
    assert str(JobProgress(3, 480, None, None)) == "step 3 of 480"
    job.end("rejected", "worse")
    assert records.get(job.id).progress is None, "it has its metrics"


def test_a_running_job_is_silent_since_it_put_anything_on_record(records, tmp_path, monkeypatch):
    job = records.begin("loop")
    record = tmp_path / "jobs" / "records" / f"{job.id}.json"
    os.utime(record, (1000, 1000))
    clock = SimpleNamespace(now=1090.0)
    monkeypatch.setattr(time, "time", lambda: clock.now)
    assert records.silent_seconds(records.get(job.id)) == 90
    assert records.silent_seconds(records.cancel(job.id)) == 90
    clock.now = 950.0
    assert records.silent_seconds(job.job) == 0, "nor less, once the clock was set back"
    clock.now = 2e9
    record.rename(record.with_suffix(".away"))
    assert records.silent_seconds(job.job) == 0, "of a job that is not on record nothing can be told"
    record.with_suffix(".away").rename(record)
    job.end("rejected", "worse")
    assert records.silent_seconds(job.job) == 0, "one that ended has no more to say"


def test_one_job_at_a_time(records):
    first = records.begin("loop")
    with pytest.raises(JobRunningError, match=rf"^job {first.id} is running already \(origin: loop\)$"):
        records.begin("api")
    first.end("rejected", "worse")
    second = records.begin("api")
    assert [job.id for job in records.jobs()] == [second.id, first.id]


def test_a_job_keeps_its_turn_though_its_record_is_broken(records, tmp_path):
    first = records.begin("loop")
    (tmp_path / "jobs" / "records" / f"{first.id}.json").write_text("{")
    with pytest.raises(JobRunningError, match=rf"^job {first.id} is running already \(origin: unknown\)$"):
        records.begin("api")


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (ValueError("the buffer is empty"), "failed", "the buffer is empty"),
        (MemoryError("no more"), "failed", "MemoryError: no more"),
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt: "),
    ],
)
def test_a_job_that_ends_by_an_error_says_so(records, error, state, reason):
    job = records.begin("command")
    with pytest.raises(type(error)), job:
        raise error
    assert (records.get(job.id).state, records.get(job.id).reason) == (state, reason.strip())
    assert ("Traceback" in records.log_tail(job.id)) == (not isinstance(error, ValueError))


def test_a_job_is_cancelled_by_anybody_while_it_runs(records, tmp_path):
    job = records.begin("loop")
    assert not job.is_cancelled
    others = JobRecords(tmp_path)
    assert others.cancel(job.id).state == "cancelling"
    assert others.cancel(job.id).state == "cancelling", "again is no error"
    assert job.is_cancelled
    assert records.running().id == job.id
    job.end("cancelled", "cancelled")
    with pytest.raises(JobEndedError, match="state is cancelled"):
        others.cancel(job.id)
    assert not records.begin("loop").is_cancelled


@pytest.mark.parametrize("job_id", ["", "20250101-000000-abcdef", "../records/x", "a\0b", "ä", "x" * 300])
def test_a_job_that_is_not_on_record(records, job_id):
    for ask in (records.get, records.cancel, records.log_tail):
        with pytest.raises(UnknownJobError) as refused:
            ask(job_id)
        assert str(refused.value) == f"no job {job_id!r} is on record"


def test_a_killed_process_leaves_a_job_that_died(records, tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert holder.stdout is not None
    job_id = holder.stdout.readline().strip()
    assert records.get(job_id).state == "running"
    with pytest.raises(JobRunningError):
        records.begin("api")
    holder.kill()
    holder.wait()
    died = records.get(job_id)
    assert (died.state, died.ended_at) == ("died", None)
    with pytest.raises(JobEndedError, match="state is died"):
        records.cancel(job_id)
    records.begin("api")


def test_a_job_lives_on_in_the_process_that_inherits_it(records, tmp_path):
    job = records.begin("api")
    child = subprocess.Popen(["sleep", "60"], pass_fds=[job.fileno()])
    lock = os.dup(job.fileno())
    job.hand_over()
    assert records.get(job.id).state == "running"
    inherited = records.inherit(job.id, lock)
    with inherited:
        logging.getLogger("training.somewhere").warning("to the output, which is the log already")
        inherited.end("rejected", "worse")
    assert records.get(job.id).state == "rejected"
    assert not records.log_path(job.id).exists()
    child.kill()
    child.wait()
    abandoned = records.begin("api")
    abandoned.hand_over()
    assert records.get(abandoned.id).state == "died"


def test_a_job_that_is_cancelled_before_its_process_begins_ends_as_any_other(records):
    """Within the seconds that its imports take."""
    job = records.begin("api")
    lock = os.dup(job.fileno())
    job.hand_over()
    records.cancel(job.id)
    inherited = records.inherit(job.id, lock)
    assert inherited.is_cancelled
    inherited.note(JobWork(job.id, "recipe", last_request="r1", parent_version=0))
    assert records.get(job.id).state == "cancelling"
    with pytest.raises(ValueError, match="the buffer is empty"), inherited:
        raise ValueError("the buffer is empty")
    os.close(lock)
    assert (records.get(job.id).state, records.get(job.id).reason) == ("failed", "the buffer is empty")
    assert records.running() is None


def test_a_job_that_is_cancelled_before_its_process_begins_and_killed_then_has_died(records):
    job = records.begin("api")
    lock = os.dup(job.fileno())
    job.hand_over()
    records.cancel(job.id)
    records.inherit(job.id, lock).note(JobWork(job.id, "recipe", last_request="r1", parent_version=0))
    os.close(lock)  # as the kernel does for a process that ends
    assert records.get(job.id).state == "died"
    assert records.running() is None, "nor is it waited for"


def test_a_job_that_was_not_handed_on_is_not_gone_on_with(records, tmp_path):
    """As if its command line were started again by hand, while it runs and after."""
    job = records.begin("api")
    other = (tmp_path / "other").open("w")
    for lock in (-1, other.fileno()):
        with pytest.raises(JobEndedError, match="not handed to this process; it is running"):
            records.inherit(job.id, lock)
    kept = os.dup(job.fileno())
    job.end("rejected", "worse")
    with pytest.raises(JobEndedError, match="it is rejected"):
        records.inherit(job.id, kept)


def test_the_oldest_records_are_forgotten(records, monkeypatch, tmp_path):
    monkeypatch.setattr(jobs_module, "MAX_RECORDS", 3)
    made = []
    for number in range(5):
        monkeypatch.setattr(jobs_module.time, "time", lambda now=1e9 + number: now)
        with records.begin("loop") as job:
            logging.getLogger().warning("hello")
            job.end("rejected", "worse")
        made.append(job.id)
    assert [job.id for job in records.jobs()] == made[:1:-1]
    assert {path.stem for path in (tmp_path / "jobs").glob("*/*.*[!n]")} == set(made[2:])


def test_an_outage_of_many_tries_takes_no_other_job_from_the_records(records, monkeypatch):
    monkeypatch.setattr(jobs_module, "MAX_RECORDS", 4)
    before = []
    for _ in range(2):
        with records.begin("loop") as job:
            job.note(JobWork(job.id, "recipe", last_request="r1", parent_version=0))
            job.end("rejected", "worse")
        before.append(job.id)
    with records.begin("loop") as first:
        first.note(work := JobWork(first.id, "recipe", last_request="r2", parent_version=0))
        first.work_folder.mkdir()
        first.end("interrupted", "the store is away")
    for _ in range(5):
        with records.begin("loop") as job:
            job.note(work)
            job.end("interrupted", "the store is away")
    left = [job.id for job in records.jobs()]
    assert (left[0], left[-2:]) == (job.id, before[::-1])
    assert records.unfinished() == records.jobs()[0]


def test_only_records_that_may_have_changed_are_read_again(records, monkeypatch):
    for _ in range(3):
        records.begin("loop").end("rejected", "worse")
    running = records.begin("loop")
    first = records.jobs()
    read = []
    stored = JobRecords._stored
    monkeypatch.setattr(JobRecords, "_stored", lambda self, job_id: read.append(job_id) or stored(self, job_id))
    assert records.jobs() == first
    assert read == [running.id]
    running.end("accepted", "better")
    assert [job.state for job in records.jobs()] == ["accepted", *3 * ["rejected"]]
