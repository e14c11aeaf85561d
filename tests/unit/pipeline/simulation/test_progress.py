import time

from hotdraft.pipeline.loop.job_progress import JobProgress
from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.pipeline.simulation.progress import latest_job


def test_the_newest_job_is_shown_as_its_record_has_it(tmp_path):
    records, began = JobRecords(tmp_path), time.time()
    assert latest_job(records, began) == ""
    with records.begin("loop") as job:
        assert latest_job(records, began) == "a job is running"
        job.tell(JobProgress(3, 60, 0.5, 9.0))
        assert latest_job(records, began) == "running: step 3 of 60, loss 0.500, about 9 s left"
        job.end("rejected", "loses 0.03 on\narithmetic", version=4)
    assert latest_job(records, began) == "v4 rejected: loses 0.03 on arithmetic"
    assert latest_job(records, time.time()) == "", "it ended before what is played now began"
