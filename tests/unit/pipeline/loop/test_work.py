"""What jobs work at: gone on with by the next, until there is a verdict."""

import pytest

from hotdraft.pipeline.loop import jobs as jobs_module
from hotdraft.pipeline.loop.job_record import Burst, Job, JobWork, LastJob, RunningJob
from hotdraft.pipeline.loop.jobs import JobRecords


def at_work(records: JobRecords, former: Job | None = None, burst: Burst | None = None) -> RunningJob:
    """A job that has put on record what it works at: what `former` left, or new work."""
    job = records.begin("loop")
    if former is None:
        job.note(JobWork(job.id, "recipe", last_request=f"last of {job.id}", parent_version=0, burst=burst))
        job.work_folder.mkdir()
    else:
        job.note(former.work, former.run_id)
    return job


def test_work_is_the_newest_job_s_that_names_it_until_that_has_a_verdict(records):
    assert records.unfinished() is None
    first = at_work(records)
    first.note(run_id="run")
    first.hand_over()  # as if its process had ended, as below
    assert records.unfinished() == records.get(first.id)
    records.begin("api").hand_over()
    assert records.unfinished().id == first.id, "the other came to nothing"
    second = at_work(records, records.unfinished())
    second.end("interrupted", "asked to stop")
    unfinished = records.unfinished()
    assert (unfinished.id, unfinished.work, unfinished.run_id) == (second.id, first.work, "run")
    assert second.id in records.get(first.id).reason, "whoever was told of the first finds the second"
    third = at_work(records, unfinished)
    third.end("accepted", "better", version=1)
    assert all(records.get(job.id).reason.endswith(f"job {third.id} went on with it") for job in (first, second))
    assert not first.work_folder.exists()
    assert records.unfinished() is None
    assert records.get(first.id).work == records.get(third.id).work, "what it was stays known"


@pytest.mark.parametrize("state", ["accepted", "rejected", "cancelled"])
def test_what_is_over_is_not_gone_on_with_though_its_folder_is_there_still(records, monkeypatch, state):
    job = at_work(records)
    monkeypatch.setattr("hotdraft.pipeline.loop.job_record.shutil.rmtree", lambda *_, **__: None)
    job.end(state, "so it is")
    assert job.work_folder.exists()
    assert records.unfinished() is None
    assert at_work(records).leftovers() == [job.work_folder]


def test_nothing_is_gone_on_with_whose_end_was_on_a_record_that_is_lost(records, tmp_path):
    at_work(records).hand_over()
    last = at_work(records, records.unfinished())
    last.end("rejected", "worse")
    (tmp_path / "jobs" / "records" / f"{last.id}.json").write_text("{")
    assert records.unfinished() is None


def test_the_last_job_is_the_newest_with_a_verdict_on_what_it_learned(records):
    records.begin("loop").end("rejected", "by an older version, which told of no work")
    assert records.last_job() is None
    first = at_work(records)
    first.end("rejected", "worse", refused_in_a_row=2)
    second = at_work(records, burst=Burst(7, 12))
    told = LastJob(first.work.last_request, records.get(first.id).ended_at, False, refused_in_a_row=2)
    assert records.last_job() == told
    second.end("cancelled", "cancelled")
    assert records.last_job() == told
    third = at_work(records, burst=Burst(7, 12))
    third.end("accepted", "better", promoted=True)
    found = records.last_job()
    assert (found.request, found.promoted, found.burst) == (third.work.last_request, True, Burst(7, 12))
    assert found.refused_in_a_row == 0


def test_a_job_of_a_clock_that_ran_ahead_is_not_the_last_for_ever(records, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(jobs_module.time, "time", lambda at=2e9: at)
        at_work(records).end("rejected", "worse")
    second = at_work(records)
    second.end("accepted", "better")
    assert records.last_job().request == second.work.last_request
    third = at_work(records)
    third.end("interrupted", "asked to stop")
    assert records.unfinished().id == third.id
    assert [job.id for job in records.jobs()][:2] == [third.id, second.id]
    assert all(job.ended_at >= job.started_at for job in records.jobs()), "no job takes less than no time"


def test_what_is_unfinished_and_what_was_finished_last_is_not_forgotten(records, monkeypatch):
    monkeypatch.setattr(jobs_module, "MAX_RECORDS", 2)
    made = []

    def next_job(make, end):
        now = 1e9 + len(made)
        monkeypatch.setattr(jobs_module.time, "time", lambda: now)
        job = make(records)
        job.end(end, "as it is")
        made.append(job.id)

    for end in ("rejected", "accepted", "interrupted"):
        next_job(at_work, end)
    for _ in range(4):
        next_job(lambda records: records.begin("loop"), "failed")
    assert {job.id for job in records.jobs()} == {*made[1:3], *made[-2:]}
    assert records.unfinished().id == made[2]
    assert records.last_job().request == f"last of {made[1]}"
    next_job(lambda records: at_work(records, records.unfinished()), "rejected")
    next_job(lambda records: records.begin("loop"), "failed")
    assert {job.id for job in records.jobs()} == {*made[-2:]}, "once it is finished there is no need"
