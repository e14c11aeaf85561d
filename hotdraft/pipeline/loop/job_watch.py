"""Following a job until it ends: a live bar on a terminal, plain lines in a log."""

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hotdraft.pipeline.loop.job_progress import JobProgress
from hotdraft.pipeline.loop.job_record import UNDER_WAY, Job
from hotdraft.pipeline.loop.jobs import JobRecords

POLL_SECONDS = 0.5
PLAIN_LINES = 20
"""Lines that a whole job prints where there is no terminal, about."""


def follow_job(records: JobRecords, job_id: str, console: Console) -> Job:
    """Show how far the job is until it ends, and give its record then. Raises `UnknownJobError`."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    told = None
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"job {job_id}", total=None)
        while (job := records.get(job_id)).state in UNDER_WAY:
            if (now := job.progress) is not None:
                bar.update(task, total=now.steps, completed=now.step, description=str(now))
                if not console.is_terminal and _is_news(now, told):
                    console.print(str(now), highlight=False, soft_wrap=True)
                    told = now
            time.sleep(POLL_SECONDS)
    return job


def _is_news(now: JobProgress, told: JobProgress | None) -> bool:
    if told is None:
        return True
    if now.has_ended:
        return not told.has_ended
    return now.step - told.step >= now.steps / PLAIN_LINES
