"""The record of one distillation job, and keeping it while the job runs."""

import logging
import math
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Annotated, Literal, Self

from pydantic import Field

from hotdraft.pipeline.loop.job_progress import JobProgress
from hotdraft.pipeline.system.json_file import Seconds, rewrite_json, write_json
from hotdraft.pipeline.system.log_tail import LOG_FORMAT

logger = logging.getLogger(__name__)

Origin = Literal["loop", "command", "api"]
"""`distill --follow`, a command of a person or a scheduler, or a request to the server."""
State = Literal["running", "cancelling", "accepted", "rejected", "failed", "interrupted", "cancelled", "died"]
UNDER_WAY = ("running", "cancelling")
VERDICTS = ("accepted", "rejected")


@dataclass(frozen=True)
class Burst:
    """A short job for what is new, so that the draft follows soon; the bursts and the job after it do the rest."""

    steps: int
    requests: int
    """Newest, which it learns from; what came before is rehearsed."""


@dataclass(frozen=True)
class JobWork:
    """What a job learns from, which one that goes on with it must not decide again."""

    id: Annotated[str, Field(pattern=r"^\d{8}-\d{6}-[0-9a-f]{6}$")]
    """Of the job that began it: its folder is `<run_dir>/jobs/<id>`."""
    recipe: str
    """Digest of all that decides what the job learns from and is judged by."""
    last_request: str
    """The newest request that it knows; later ones belong to the next job."""
    parent_version: int
    burst: Burst | None = None
    attempts: int = 0
    """Times it was begun since it last got on well."""


@dataclass(frozen=True)
class LastJob:
    """The job that was finished last, for a trigger that was not there."""

    request: str
    """The newest request that it saw."""
    ended_at: float
    promoted: bool
    refused_in_a_row: int = 0
    """Jobs up to this one and with it, without hope: none seemed to gain."""
    burst: Burst | None = None


@dataclass(frozen=True)
class Job:
    """One run of a job. The work of an interrupted or died one is gone on with by the next."""

    id: str
    origin: Origin
    state: State
    started_at: Seconds
    ended_at: Seconds | None = None
    version: int | None = None
    """The adapter version that it published."""
    promoted: bool = False
    """It went into service: what passes the gate does not while the champion is pinned."""
    reason: str | None = None
    """The gate's, or what went wrong."""
    run_id: str | None = None
    """The MLflow run."""
    metrics: dict[str, float] = field(default_factory=dict)
    """What the gate and the training measured."""
    refused_in_a_row: int = 0
    """See `LastJob`."""
    work: JobWork | None = None
    """The newest record that names one says how that stands."""
    progress: JobProgress | None = None
    """While it trains and is judged, or where it died."""


class RunningJob:
    """A job that this process runs. Within its context what is logged goes to the job's log as well.

    A context that is left without `end` ends the job as failed, or as interrupted by `KeyboardInterrupt`
    and `SystemExit`.
    """

    def __init__(self, job: Job, folder: Path, log_path: Path, lock: IO[str] | None) -> None:
        self._job = job
        self._folder = folder
        self._lock = lock
        self._log_path = log_path
        self._handler: logging.Handler | None = None
        self._began = time.monotonic() - max(0.0, time.time() - job.started_at)

    @property
    def id(self) -> str:
        return self._job.id

    @property
    def job(self) -> Job:
        """As it stands on record."""
        return self._job

    @property
    def work(self) -> JobWork:
        """What it works at, once that is on record."""
        assert self._job.work is not None
        return self._job.work

    @property
    def work_folder(self) -> Path:
        return self._folder.parent / self.work.id

    @property
    def run_id(self) -> str:
        """Its MLflow run, once that is on record."""
        assert self._job.run_id is not None
        return self._job.run_id

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody asked for its end."""
        return (self._folder / f"{self.id}.cancel").exists()

    def fileno(self) -> int:
        """Of the lock, for a process that is to inherit it."""
        assert self._lock is not None
        return self._lock.fileno()

    def hand_over(self) -> None:
        """Leave the job to the process that inherited its lock."""
        self._close_lock()

    def note(self, work: JobWork | None = None, run_id: str | None = None) -> None:
        """Put on record what the job works at, and its MLflow run; None leaves what is there."""
        self._job = replace(self._job, work=work or self._job.work, run_id=run_id or self._job.run_id)
        self.write()

    def tell(self, progress: JobProgress) -> None:
        """Put on record how far the training is. Trouble with that is logged: it is no reason to end the job."""
        self._job = replace(self._job, progress=progress)
        try:
            self.write()
        except OSError as error:
            logger.warning("how far job %s is could not be written: %s", self._job.id, error)

    def leftovers(self) -> list[Path]:
        """Folders of work that no job goes on with, now that this one is on record."""
        folders = self._folder.parent.glob("????????-??????-??????")
        return [folder for folder in folders if folder != self.work_folder]

    def end(
        self,
        state: Literal["accepted", "rejected", "failed", "interrupted", "cancelled"],
        reason: str,
        *,
        version: int | None = None,
        promoted: bool = False,
        metrics: Mapping[str, float] | None = None,
        refused_in_a_row: int = 0,
    ) -> None:
        """Put the job's end on record, `reason` in one line. Its work goes, unless it failed or was interrupted.

        Raises OSError where that cannot be written: it has died then, for whoever asks.
        """
        self._job = replace(
            self._job,
            state=state,
            reason=" ".join(reason.split())[:1000],
            # the clock may have been set back
            ended_at=max(time.time(), self._job.started_at + time.monotonic() - self._began),
            version=version,
            promoted=promoted,
            metrics={name: value for name, value in (metrics or {}).items() if math.isfinite(value)},
            refused_in_a_row=refused_in_a_row,
            progress=None,
        )
        try:
            self._write_end()
            if self._job.work is not None and state not in ("failed", "interrupted"):
                shutil.rmtree(self.work_folder, ignore_errors=True)
        finally:
            self.release()

    def release(self) -> None:
        """Run no more."""
        self._close_lock()
        for suffix in ("lock", "cancel"):
            (self._folder / f"{self.id}.{suffix}").unlink(missing_ok=True)

    def write(self) -> None:
        write_json(self._path, asdict(self._job))

    def _write_end(self) -> None:
        try:
            self.write()
        except OSError:  # as on a full disk, where a job that says nothing would have died of who knows what
            rewrite_json(self._path, asdict(self._job))

    @property
    def _path(self) -> Path:
        return self._folder / f"{self.id}.json"

    def __enter__(self) -> Self:
        if self._lock is not None:  # what we print does not go to the log by itself
            self._handler = logging.FileHandler(self._log_path)
            self._handler.setFormatter(logging.Formatter(LOG_FORMAT))
            logging.getLogger().addHandler(self._handler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._end_for(error)
        finally:
            if self._handler is not None:
                logging.getLogger().removeHandler(self._handler)
                self._handler.close()

    def _end_for(self, error: BaseException | None) -> None:
        if self._job.state == "running":
            expected = isinstance(error, ValueError)
            text = str(error) if expected else f"{type(error).__name__}: {error}"
            logger.error("job %s ended without a verdict: %s", self.id, text, exc_info=None if expected else error)
            self.end("failed" if isinstance(error, Exception) else "interrupted", text)

    def _close_lock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None
