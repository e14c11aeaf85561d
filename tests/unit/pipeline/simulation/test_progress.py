from hotdraft.pipeline.loop.job_progress import JobProgress
from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.pipeline.simulation.progress import latest_job


def test_the_newest_job_is_shown_as_its_record_has_it(tmp_path):
    records = JobRecords(tmp_path)
    assert latest_job(records) == ""
    with records.begin("loop") as job:
        assert latest_job(records) == "a job is running"
        job.tell(JobProgress(3, 60, 0.5, 9.0))
        assert latest_job(records) == "running: step 3 of 60, loss 0.500, about 9 s left"
        job.end("rejected", "loses 0.03 on\narithmetic", version=4)
    assert latest_job(records) == "v4 rejected: loses 0.03 on arithmetic"
