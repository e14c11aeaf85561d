"""A job that meets a full disk leaves nothing behind that keeps the next one from beginning."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotdraft.pipeline.loop.jobs import JobRecords
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


def test_one_whose_end_cannot_be_written_has_died(tmp_path: Path, disk: pytest.MonkeyPatch) -> None:
    records, handlers = JobRecords(tmp_path), list(logging.getLogger().handlers)
    job = records.begin("command")
    job.__enter__()
    disk.setattr(*FULL)
    with pytest.raises(OSError, match="No space"):
        job.__exit__(ValueError, ValueError("of its own"), None)
    disk.undo()
    assert logging.getLogger().handlers == handlers
    assert [job.state for job in records.jobs()] == ["died"]
    records.begin("command").end("rejected", "worse")
