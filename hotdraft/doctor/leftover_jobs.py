"""Distillation jobs that began and have no verdict, and what an operator had said of them."""

from collections.abc import Iterator
from pathlib import Path
from shlex import quote

from hotdraft.doctor.finding import Finding, ok, warning
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.controls import ControlFile
from hotdraft.pipeline.loop.jobs import JobRecords

SILENT_SECONDS = 900.0
"""After which a running job may hang: it tells of each second of training, and the rest takes minutes."""


def examine_jobs(config: HotdraftConfig, config_path: Path) -> Iterator[Finding]:
    """Of those on record the newest: each goes on with what one before it left."""
    records, file = JobRecords(config.run_dir), quote(str(config_path))
    newest = next(iter(records.jobs()), None)
    if newest is None:
        yield ok("jobs", "none has run yet")
    elif newest.state in ("interrupted", "died", "failed"):
        left = records.unfinished()
        then = "begins another" if left is None else f"goes on where job {left.id} stopped"
        yield warning(
            "jobs",
            f"job {newest.id} {newest.state}: {newest.reason}",
            f"`hotdraft jobs show {newest.id} --config {file}` has its log; "
            f"`hotdraft distill --config {file}` {then}",
        )
    elif (silent := records.silent_seconds(newest)) > SILENT_SECONDS:
        yield warning(
            "jobs",
            f"job {newest.id} is {newest.state} and has told nothing for {silent / 60:.0f} minutes",
            "if its process does no work, end it (`kill -9`): a trainer is started again and goes on with the job",
        )
    else:
        yield ok("jobs", f"job {newest.id}: {newest.state}")
    if (says := ControlFile(config.run_dir).broken()) is not None:
        mend = f"`hotdraft loop on --config {file}`, or off, writes it anew; it may have said more"
        yield warning("controls", f"{says}: where a process starts the loop rests, and k is as configured", mend)
    for says in records.broken():
        yield warning("jobs", says, "delete the file once you have seen what is in it; nothing else needs it")
