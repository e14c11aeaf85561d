"""What every stage of a job is given, and why and where a job ends before its verdict."""

from dataclasses import dataclass

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.job_record import RunningJob
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.fit.resume import JobInterruptedError, StopSignal
from hotdraft.training.judging.resident import Resident
from hotdraft.training.online.journal import JobJournal


class JobError(ValueError):
    """A job that cannot start: nothing to train on, nothing to judge by, no draft."""


class JobCancelledError(RuntimeError):
    """A job that somebody cancelled: it was dropped, and nothing of it is published."""


class Interruption(StopSignal):
    """The stop signal of `job`: set once `stop` is, or once the job is cancelled."""

    def __init__(self, job: RunningJob, stop: StopSignal | None) -> None:
        self._job = job
        self._stop = stop

    @property
    def is_cancellation(self) -> bool:
        return self._job.is_cancelled

    def is_set(self) -> bool:
        return self.is_cancellation or (self._stop is not None and self._stop.is_set())

    def check(self, stage: str) -> None:
        """Raises `JobInterruptedError` if it is set, before `stage` of the job."""
        if self.is_set():
            raise JobInterruptedError(f"the job was asked to stop before {stage}")


@dataclass(frozen=True)
class JobContext:
    config: HotdraftConfig
    buffer: ReplayBuffer
    registry: AdapterRegistry
    journal: JobJournal
    job: RunningJob
    """As it stands on record."""
    interruption: Interruption
    progress: bool
    """Whether to draw a bar."""
    resident: Resident
    max_steps: int | None
    """Of a new job's training; None is what the configuration says."""
