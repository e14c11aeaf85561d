"""What every stage of a job is given, and why and where a job ends before its verdict."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.job_record import Burst, RunningJob
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.fit.resume import JobInterruptedError, StopSignal
from hotdraft.training.judging.resident import Resident


class JobError(ValueError):
    """A job that cannot start: nothing to train on, nothing to judge by, no draft."""


class JobCancelledError(RuntimeError):
    """A job that was dropped, and nothing of it is published."""


class JobGaveWayError(JobCancelledError):
    """A job that was dropped for what was more urgent; what it would have learned from is new still."""


MOST_RATE = 4.0
"""Times `distill.learning_rate`, in the shortest of bursts."""

Urgent = Callable[[], str | None]
"""Says what is more urgent than the job that runs, if anything is."""


class Interruption(StopSignal):
    """The stop signal of `job`: set once `stop` is, once the job is cancelled, or, while it gives way, once there
    is anything more `urgent`."""

    def __init__(self, job: RunningJob, stop: StopSignal | None, urgent: Urgent | None = None) -> None:
        self._job = job
        self._stop = stop
        self._urgent = urgent
        self._gave_way_to: str | None = None

    @property
    def dropped(self) -> JobCancelledError | None:
        """Why the job is not to be gone on with, if it is not."""
        if self._job.is_cancelled:
            return JobCancelledError("cancelled before its verdict")
        return None if self._gave_way_to is None else JobGaveWayError(f"gave way: {self._gave_way_to}")

    def is_set(self) -> bool:
        if self._urgent is not None and self._gave_way_to is None:
            self._gave_way_to = self._urgent()
        return self.dropped is not None or (self._stop is not None and self._stop.is_set())

    def give_way_no_more(self) -> None:
        """Nothing is more urgent than what is left to do: little, or a burst."""
        self._urgent = None

    def check(self, stage: str) -> None:
        """Raises `JobInterruptedError` if it is set, before `stage` of the job."""
        if self.is_set():
            raise JobInterruptedError(f"the job was asked to stop before {stage}")


@dataclass(frozen=True)
class JobContext:
    config: HotdraftConfig
    buffer: ReplayBuffer
    registry: AdapterRegistry
    job: RunningJob
    """As it stands on record."""
    interruption: Interruption
    progress: bool
    """Whether to draw a bar."""
    resident: Resident

    def being(self, burst: Burst | None) -> Self:
        """The same for a job that is a `burst`; None: one that the configuration says."""
        if burst is None:
            return self
        distill = self.config.distill
        narrow = {
            "max_steps": burst.steps,
            "learning_rate": distill.learning_rate * min(MOST_RATE, math.sqrt(distill.max_steps / burst.steps)),
            "window_requests": burst.requests,
            "mix_requests": burst.requests,
        }
        distill = distill.model_copy(update=narrow)
        return replace(self, config=self.config.model_copy(update={"distill": distill}))
