"""Starting a job's process; what the process then does is `tests/integration/http/test_admin.py`'s."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

from hotdraft.pipeline.config.learning import DistillConfig
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.jobs import JobRecords, JobRunningError
from hotdraft.pipeline.processes import job_process
from hotdraft.pipeline.processes.job_process import start_job

SAY = (
    "import json, os, sys; print(json.dumps([sys.argv[1:], os.getpid() == os.getsid(0), os.nice(0), "
    "os.environ['OMP_NUM_THREADS'], os.environ['HOTDRAFT_ENGINE__K']]), flush=True); sys.stdin.read(); "
    "import time; time.sleep(0.5)"
)


@pytest.fixture
def config(tmp_path: Path) -> HotdraftConfig:
    return HotdraftConfig(target="tiny", run_dir=tmp_path / "run", distill=DistillConfig(nice=7, threads=1))


def test_the_process_is_detached_and_yields_and_its_end_is_the_jobs(config, monkeypatch):
    monkeypatch.setattr(
        job_process, "distill_command", lambda *arguments: [sys.executable, "-c", SAY, *arguments[1:]]
    )
    before = os.nice(0)
    job = start_job(Path("c.yaml"), config, {"engine": {"k": 3}}, origin="api")
    records = JobRecords(config.run_dir)
    assert records.running() == job
    with pytest.raises(JobRunningError):
        start_job(Path("c.yaml"), config, origin="command")
    deadline = time.monotonic() + 20
    while records.get(job.id).state == "running":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert records.get(job.id).state == "died", "it ended without a verdict"
    said = json.loads(records.log_tail(job.id))
    arguments, *said = said
    assert arguments[:-1] == ["--once", "--job", job.id, "--lock"]
    assert said == [True, min(before + 7, 19), "1", "3"]
    assert os.nice(0) == before


def test_a_process_that_cannot_be_started_is_a_failed_job(config, monkeypatch):
    monkeypatch.setattr(job_process, "distill_command", lambda *_: ["/no/such/program"])
    with pytest.raises(OSError, match="No such file"):
        start_job(Path("c.yaml"), config, origin="api")
    [job] = JobRecords(config.run_dir).jobs()
    assert job.state == "failed"
    assert "No such file" in job.reason
