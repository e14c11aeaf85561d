"""A full disk: a job leaves nothing that keeps the next one from beginning, and what that waits for is told yet."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotdraft.pipeline.loop import job_record
from hotdraft.pipeline.loop.job_progress import JobProgress
from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.pipeline.loop.next_job import NextJobFile
from hotdraft.pipeline.system import json_file


def no_room(*_: Any) -> None:
    raise OSError(28, "No space left on device")


FULL: Any = json_file.os, "fsync", no_room


@pytest.fixture
def disk() -> Iterator[pytest.MonkeyPatch]:
    """Is full from `setattr(*FULL)` to `undo`."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def left(tmp_path: Path) -> list[str]:
    return sorted(path.suffix for path in (tmp_path / "jobs" / "records").glob("*-*"))


def test_one_that_cannot_begin_leaves_no_file(tmp_path: Path, disk: pytest.MonkeyPatch) -> None:
    disk.setattr(*FULL)
    with pytest.raises(OSError, match="No space"):
        JobRecords(tmp_path).begin("command")
    assert left(tmp_path) == []
    disk.undo()
    JobRecords(tmp_path).begin("command").end("rejected", "worse")


def test_one_that_ends_says_why_in_the_place_that_its_record_has(tmp_path: Path, disk: pytest.MonkeyPatch) -> None:
    records = JobRecords(tmp_path)
    job = records.begin("command")
    job.tell(JobProgress(3, 60, 0.5, 9.0))
    disk.setattr(*FULL)
    with pytest.raises(OSError, match="No space"), job:
        no_room()
    disk.undo()
    [ended] = records.jobs()
    assert (ended.state, ended.reason) == ("failed", "OSError: [Errno 28] No space left on device")
    assert left(tmp_path) == [".json"]
    records.begin("command").end("rejected", "worse")


def test_one_whose_end_has_no_place_at_all_has_died(tmp_path: Path, disk: pytest.MonkeyPatch) -> None:
    records, handlers = JobRecords(tmp_path), list(logging.getLogger().handlers)
    job = records.begin("command")
    job.__enter__()
    disk.setattr(*FULL)
    disk.setattr(job_record, "rewrite_json", no_room)
    with pytest.raises(OSError, match="No space"):
        job.__exit__(ValueError, ValueError("of its own"), None)
    disk.undo()
    assert logging.getLogger().handlers == handlers
    assert [job.state for job in records.jobs()] == ["died"]
    records.begin("command").end("rejected", "worse")


def test_what_a_job_waits_for_is_told_once_there_is_room(
    tmp_path: Path, disk: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    next_job = NextJobFile(tmp_path)
    disk.setattr(*FULL)
    for _ in range(3):
        next_job.tell("waiting: 3 of 8 new requests")
    assert len(caplog.messages) == 1
    disk.undo()
    next_job.tell("waiting: 3 of 8 new requests")
    assert NextJobFile(tmp_path).read() == "waiting: 3 of 8 new requests"
