"""The trainer that stays: distil whenever the trigger says so."""

import logging
from typing import Protocol

from pipeline.config import HotdraftConfig
from pipeline.controls import ControlFile
from pipeline.jobs import JobRecords, JobRunningError
from pipeline.loop import DistillTrigger
from pipeline.registry import AdapterRegistry
from pipeline.replay import ReplayBuffer
from training.interruption import JobCancelledError
from training.job import JobError, run_job
from training.journal import JobJournal
from training.run import JobInterruptedError, StopSignal

logger = logging.getLogger(__name__)


class StopEvent(StopSignal, Protocol):
    """A signal that can be waited for."""

    def wait(self, timeout: float | None = None) -> bool: ...


def follow(config: HotdraftConfig, stop: StopEvent) -> None:
    """Poll the replay buffer and run jobs until `stop` is set; an unfinished job is resumed first.

    While the operator has switched the loop off, or another process runs a job, none is begun.
    """
    follower = _Follower(config)
    while not stop.is_set():
        try:
            follower.turn(stop)
        except JobInterruptedError as interruption:
            logger.info("%s; it goes on at the next start", interruption)
            return
        stop.wait(config.distill.trigger.poll_seconds)


class _Follower:
    def __init__(self, config: HotdraftConfig) -> None:
        self._config = config
        self._buffer = ReplayBuffer.of(config)
        self._registry = AdapterRegistry(config)
        self._controls = ControlFile(config.run_dir)
        self._records = JobRecords(config.run_dir)
        self._journal = JobJournal(config)
        self._enabled = True
        self._learned = self._journal.last_job()
        self._trigger = DistillTrigger(config, self._buffer, self._learned)
        self._unfinished = self._journal.unfinished() is not None

    def turn(self, stop: StopEvent) -> None:
        """Run a job if one is due. Raises `JobInterruptedError` if `stop` ended it."""
        last = self._journal.last_job()
        if last is not None and last != self._learned:  # a job by hand has taken what is there
            self._reset(new_draft=last.accepted)
        decision = self._trigger.decide()
        if not self._is_enabled() or not (decision.due or self._unfinished):
            return
        try:
            job = self._records.begin("loop")
        except JobRunningError:
            return
        logger.info("distilling: %s", "an unfinished job" if self._unfinished else decision.reason)
        accepted = False
        try:
            result = run_job(self._config, buffer=self._buffer, registry=self._registry, stop=stop, job=job)
        except (JobError, JobCancelledError) as error:
            logger.warning("no verdict on job %s: %s", job.id, error)
        else:
            accepted = result.verdict.accepted
        self._unfinished = False
        self._reset(new_draft=accepted)

    def _reset(self, *, new_draft: bool) -> None:
        self._learned = self._journal.last_job()
        self._trigger.reset(new_draft=new_draft)

    def _is_enabled(self) -> bool:
        enabled = self._controls.read().loop_enabled
        if enabled != self._enabled:
            logger.info("the loop is %s", "on again" if enabled else "off: no new job begins")
            self._enabled = enabled
        return enabled
