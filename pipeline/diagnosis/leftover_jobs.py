"""Distillation jobs that began and have no verdict."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

from pipeline.config import HotdraftConfig
from pipeline.diagnosis.finding import Finding, ok, warning

QUIET_SECONDS = 600.0
"""A job that wrote nothing for so long is at work no more: checkpoints come more often."""


def examine_jobs(config: HotdraftConfig, config_path: Path) -> Iterator[Finding]:
    journals = sorted((config.run_dir / "jobs").glob("*/job.json"))
    if not journals:
        yield ok("jobs", "none was left unfinished")
    for path in journals:
        try:
            quiet = time.time() - max(file.stat().st_mtime for file in path.parent.rglob("*"))
            job = json.loads(path.read_text())
        except FileNotFoundError:  # it ended while we looked
            continue
        if quiet < QUIET_SECONDS:
            yield ok("jobs", f"job {job['job_id']} is at work: it wrote {quiet:.0f} s ago")
        else:
            yield warning(
                "jobs",
                f"job {job['job_id']} has no verdict and wrote nothing for {quiet / 60:.0f} minutes",
                f"`hotdraft distill --config {config_path}` goes on where it stopped",
            )
