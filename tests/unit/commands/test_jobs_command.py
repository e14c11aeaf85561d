"""``hotdraft jobs`` at the command line."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from hotdraft.cli import app
from hotdraft.pipeline.loop.job_progress import JobProgress
from hotdraft.pipeline.loop.jobs import JobRecords


@pytest.fixture
def records(tmp_path: Path) -> JobRecords:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"target": "t", "run_dir": str(tmp_path)}))
    return JobRecords(tmp_path)


@pytest.fixture
def jobs(tmp_path: Path):
    def run(*words: str) -> str:
        done = CliRunner().invoke(app, ["jobs", *words, "--config", str(tmp_path / "config.yaml")])
        assert done.exit_code == 0, done.output
        return done.stdout

    return run


def test_the_newest_job_is_watched_until_it_ends(records, jobs, monkeypatch):
    assert jobs("watch") == "no job has run yet\n"
    with records.begin("loop") as former:
        former.end("rejected", "worse")
    job = records.begin("loop")
    job.tell(JobProgress(120, 480, 0.5234, 61.7))
    shown = jobs("show", job.id)
    assert "step 120 of 480, loss 0.523, about 62 s left" in shown
    monkeypatch.setattr(
        "hotdraft.pipeline.loop.job_watch.time.sleep", lambda _: job.end("accepted", "better", version=3)
    )
    assert jobs("watch").splitlines() == [
        "step 120 of 480, loss 0.523, about 62 s left",
        f"job {job.id} accepted, version 3: better",
    ]
    assert jobs("watch", former.id) == f"job {former.id} rejected: worse\n"
