"""What is known of every distillation job, while it runs and after.

`<run_dir>/jobs/records/<id>.json` is the record of one. A running job holds a lock on `<id>.lock`
beside it, which the kernel frees when the process ends, however it ends: a record that says
`running` without the lock is of a job that died. While one is held, no other job begins. The file
`<id>.cancel` asks a job to end, and may be written by any process that shares the folder. What a job says
is in `<run_dir>/jobs/logs/<id>.log`.

What it works at lies in `<run_dir>/jobs/<id>` until there is a verdict. A job that goes on with another names the
same work in its own record, by one write: the newest record that names one owns it, and says how it stands.
"""

import fcntl
import logging
import os
import re
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from filelock import FileLock

from hotdraft.pipeline.loop.job_record import UNDER_WAY, VERDICTS, Job, LastJob, Origin, RunningJob
from hotdraft.pipeline.system.json_file import BrokenFileError, read_json
from hotdraft.pipeline.system.log_tail import log_tail
from hotdraft.pipeline.system.run_lock import is_locked

logger = logging.getLogger(__name__)

LEFT_WORK = ("died", "interrupted")
MAX_RECORDS = 200
"""Newest jobs that are remembered."""


class UnknownJobError(ValueError):
    """No record of such a job."""


class JobEndedError(ValueError):
    """A job that cannot be cancelled, because it runs no more."""


class JobRunningError(ValueError):
    """A job cannot begin while another one runs in the same run directory."""


class JobRecords:
    """The jobs of one run directory. Any number of processes may use it at once."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / "jobs" / "records"
        self._logs = run_dir / "jobs" / "logs"
        self._ended: dict[str, Job] = {}
        """As they were read: the record of an ended job changes no more."""
        self._broken: dict[str, str] = {}
        """Ids whose records were told to be broken, and how."""

    def jobs(self) -> list[Job]:
        """Newest first."""
        ids = [path.stem for path in self._folder.glob("*.json")]
        found = [job for job_id in ids if (job := self._ended.get(job_id) or self._read(job_id)) is not None]
        self._ended = {job.id: job for job in found if job.ended_at is not None}
        for gone in self._broken.keys() - {*ids}:
            self._broken.pop(gone, None)
        ordered = sorted(found, key=lambda job: job.started_at, reverse=True)
        return [_with_heir(job, ordered) for job in ordered]

    def broken(self) -> list[str]:
        """Of each record that cannot be read, what is wrong with it."""
        self.jobs()
        return sorted(self._broken.values())

    def get(self, job_id: str) -> Job:
        """Raises `UnknownJobError`."""
        known = re.fullmatch(r"[\w-]{1,64}", job_id, re.ASCII)
        job = self._read(job_id) if known else None
        if job is None:
            raise UnknownJobError(f"no job {job_id!r} is on record")
        return _with_heir(job, self.jobs()) if job.state in LEFT_WORK else job

    def running(self) -> Job | None:
        """The job that runs now, in whatever process."""
        return next((job for job in self.jobs() if job.state in UNDER_WAY), None)

    def silent_seconds(self, job: Job) -> float:
        """Since a running job put anything on record, as it does each second of training; 0 for one that ended."""
        if job.state not in UNDER_WAY:
            return 0.0
        try:
            return max(0.0, time.time() - self._path(job.id, "json").stat().st_mtime)
        except FileNotFoundError:
            return 0.0

    def unfinished(self) -> Job | None:
        """The job whose work waits for the next one, if any does."""
        job = next((job for job in self.jobs() if job.work is not None), None)
        if job is None or job.work is None or job.state in (*VERDICTS, "cancelled"):
            return None
        return job if (self._folder.parent / job.work.id).is_dir() else None

    def last_job(self) -> LastJob | None:
        """The job that was finished last."""
        for job in self.jobs():
            if job.work is not None and job.ended_at is not None and job.state in VERDICTS:
                seen, burst = job.work.last_request, job.work.burst
                return LastJob(seen, job.ended_at, job.promoted, job.refused_in_a_row, burst)
        return None

    def begin(self, origin: Origin) -> RunningJob:
        """Put a new job on record. Raises `JobRunningError` if one runs."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        with FileLock(self._folder / ".begin"):
            held = next((path.stem for path in self._folder.glob("*.lock") if self._is_locked(path.stem)), None)
            if held is not None:
                running = self._stored(held)  # which may be broken: the lock decides
                origin_of_it = "unknown" if running is None else running.origin
                raise JobRunningError(f"job {held} is running already (origin: {origin_of_it})")
            others = self.jobs()
            self._forget_oldest(others)
            # behind those of a clock that ran ahead: which job was last, and what is left of it, goes by this
            now = time.time()
            if others:
                now = max(now, others[0].started_at + 1, (others[0].ended_at or 0.0) + 1e-3)
            job_id = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{uuid.uuid4().hex[:6]}"
            lock = self._path(job_id, "lock").open("w")
            fcntl.flock(lock, fcntl.LOCK_EX)
            job = RunningJob(Job(job_id, origin, "running", now), self._folder, self.log_path(job_id), lock)
            try:
                job.write()
            except OSError:
                job.release()
                raise
            return job

    def inherit(self, job_id: str, lock: int) -> RunningJob:
        """The job that another process began for this one, handing on its `lock`, open, and its log as our output.

        Raises `UnknownJobError`, and `JobEndedError` if `lock` is not that of a job that runs.
        """
        job = self.get(job_id)
        try:
            is_ours = os.path.samestat(os.fstat(lock), self._path(job_id, "lock").stat())
        except OSError:
            is_ours = False
        if not is_ours:  # nor is that of one that ended, which is deleted
            raise JobEndedError(f"job {job_id} was not handed to this process; it is {job.state}")
        # that it was cancelled meanwhile, a file of its own says: on record it would outlive the job
        return RunningJob(replace(job, state="running"), self._folder, self.log_path(job_id), None)

    def cancel(self, job_id: str) -> Job:
        """Ask a job to end without a verdict; it does at its next step.

        Raises `UnknownJobError`, and `JobEndedError` if it runs no more.
        """
        if self.get(job_id).state == "running":
            self._path(job_id, "cancel").touch()
        job = self.get(job_id)
        if job.state != "cancelling":
            raise JobEndedError(f"job {job_id} runs no more: its state is {job.state}")
        return job

    def log_path(self, job_id: str) -> Path:
        return self._logs / f"{job_id}.log"

    def log_tail(self, job_id: str, lines: int = 40) -> str:
        """The last that a job said. Raises `UnknownJobError`."""
        return log_tail(self.log_path(self.get(job_id).id), lines)

    def _read(self, job_id: str) -> Job | None:
        job = self._stored(job_id)
        if job is None or job.state != "running":
            return job
        if self._is_locked(job_id):
            return replace(job, state="cancelling") if self._path(job_id, "cancel").exists() else job
        job = self._stored(job_id)  # it may have ended while we looked
        if job is None or job.state != "running":
            return job
        return replace(job, state="died", reason="its process ended without a word; the log may say why")

    def _stored(self, job_id: str) -> Job | None:
        path = self._path(job_id, "json")
        try:
            job = read_json(path, Job)
            if job.id != job_id:
                raise BrokenFileError(f"{path} is broken: it is the record of {job.id!r}")
        except FileNotFoundError:
            return None
        except BrokenFileError as error:
            if job_id not in self._broken:
                logger.warning("a job's record is passed over: %s", error)
            self._broken[job_id] = str(error)
            return None
        self._broken.pop(job_id, None)
        return job

    def _is_locked(self, job_id: str) -> bool:
        return is_locked(self._path(job_id, "lock"))

    def _forget_oldest(self, jobs: Sequence[Job]) -> None:
        """Of `jobs`, newest first, but not what is unfinished, nor the one that was finished last.

        Those whose work another went on with are the first: a store that is away for a night leaves hundreds.
        """
        works = {job.id: job.work.id for job in jobs if job.work is not None}
        newest = {work: job_id for job_id, work in reversed(works.items())}
        finished = [job.id for job in jobs if job.id in works and job.state in VERDICTS]
        kept = {*list(works)[:1], *finished[:1]}
        ids = sorted((path.stem for path in self._folder.glob("*.json")), reverse=True)
        ids.sort(key=lambda job_id: job_id in works and newest[works[job_id]] != job_id)
        for job_id in set(ids[MAX_RECORDS - 1 :]) - kept:
            for suffix in ("json", "lock", "cancel"):
                self._path(job_id, suffix).unlink(missing_ok=True)
            self.log_path(job_id).unlink(missing_ok=True)

    def _path(self, job_id: str, suffix: str) -> Path:
        return self._folder / f"{job_id}.{suffix}"


def _with_heir(job: Job, jobs: Sequence[Job]) -> Job:
    """`job` whose reason names the newest of `jobs`, newest first, that went on with its work, if one did."""
    if job.state not in LEFT_WORK or job.work is None:
        return job
    later = (other for other in jobs if other.started_at > job.started_at)
    heir = next((other.id for other in later if other.work is not None and other.work.id == job.work.id), None)
    return job if heir is None else replace(job, reason=f"{job.reason}; job {heir} went on with it")
