"""The trainer that stays: distil whenever the trigger says so."""

import gc
import logging
import time
from collections.abc import Iterator
from typing import Protocol

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.controls import ControlFile
from hotdraft.pipeline.loop.jobs import JobRecords, JobRunningError
from hotdraft.pipeline.loop.next_job import NextJobFile
from hotdraft.pipeline.loop.trigger import Decision, DistillTrigger
from hotdraft.pipeline.models.draft_vocabulary import VocabularyError
from hotdraft.pipeline.models.loading import weights_id
from hotdraft.pipeline.models.names import ModelError
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.store.connection import StoreError, store_errors
from hotdraft.pipeline.store.errors import RegistryError
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.pipeline.system.freed_memory import give_back
from hotdraft.training.batches.mixture import held_out_in_mixture
from hotdraft.training.fit.resume import JobInterruptedError, StopSignal
from hotdraft.training.judging.resident import Resident
from hotdraft.training.online.context import JobCancelledError, JobError, JobGaveWayError
from hotdraft.training.online.job import run_job
from hotdraft.training.online.unfinished import unfinished

logger = logging.getLogger(__name__)

LONGEST_RETRY_SECONDS = 60.0


class StopEvent(StopSignal, Protocol):
    """A signal that can be waited for."""

    def wait(self, timeout: float | None = None) -> bool: ...


def follow(config: HotdraftConfig, stop: StopEvent) -> None:
    """Poll the replay buffer and run jobs until `stop` is set; an unfinished job is resumed first.

    While the operator has switched the loop off, or another process runs a job, none is begun. While MLflow's
    store is away, a job that is due waits for it, and so does one that it left in the middle.
    """
    follower: _Follower | None = None
    logger.info(
        "following what is recorded in %s; `hotdraft replay due` says what a job waits for", config.replay_url
    )
    poll, retry_delay = config.distill.trigger.poll_seconds, 0.0
    while not stop.is_set():
        at_once = False
        try:
            follower = follower or _Follower(config)
            at_once = follower.turn(stop)
        except JobInterruptedError as interruption:
            logger.info("%s; it goes on at the next start", interruption)
            return
        except (StoreError, ModelError, OSError) as error:
            # ModelError: the draft that an unfinished job began with is away; OSError: the replay buffer's store is
            if not retry_delay:
                logger.warning("%s; jobs wait for it", error)
            retry_delay = min(max(2 * retry_delay, poll), LONGEST_RETRY_SECONDS)
        else:
            if retry_delay:
                logger.info("jobs wait no more: what they waited for is back")
            retry_delay = 0.0
        if not at_once:
            stop.wait(max(poll, retry_delay))


class _Follower:
    def __init__(self, config: HotdraftConfig) -> None:
        self._config = config
        self._buffer = ReplayBuffer.of(config, may_be_away=True)
        self._registry = AdapterRegistry(config)
        self._controls = ControlFile(config.run_dir)
        self._records = JobRecords(config.run_dir)
        self._next_job = NextJobFile(config.run_dir)
        self._resident = Resident()
        self._enabled = True
        self._asked = 0.0
        """When a job that ran last asked what is more urgent, on the monotonic clock."""
        self._warming = self._warm()
        self._brought = len(held_out_in_mixture(config))
        self._begin_trigger()
        self._unfinished = unfinished(self._records, config) is not None

    def turn(self, stop: StopEvent) -> bool:
        """Run a job if one is due, or get readier for one; says whether there may be more to do at once.

        Raises `JobInterruptedError` if `stop` ended it, and `StoreError`.
        """
        last = self._records.last_job()
        if last is not None and last != self._learned:  # a job by hand has learned since
            self._unfinished = False
            self._begin_trigger()
        decision = self._trigger.decide()
        self._next_job.tell(decision.reason)
        if not self._is_enabled():
            return False
        if not (decision.due or self._unfinished):
            return self._warm_up()
        with store_errors(self._config):
            self._registry.champion()  # before the job is put on record: an outage is not many jobs that failed
        try:
            job = self._records.begin("loop")
        except JobRunningError:
            return False
        logger.info("distilling: %s", "an unfinished job" if self._unfinished else decision.reason)
        result = None
        try:
            result = run_job(
                self._config,
                buffer=self._buffer,
                registry=self._registry,
                stop=stop,
                job=job,
                burst=decision.burst,
                resident=self._resident,
                urgent=None if decision.burst and not self._unfinished else self._urgent,
            )
        except StoreError:
            self._unfinished = unfinished(self._records, self._config) is not None
            raise
        except JobGaveWayError as way:
            logger.info("job %s %s", job.id, way)
            self._unfinished = False
            return True
        except (JobError, JobCancelledError, RegistryError) as error:
            logger.warning("no verdict on job %s: %s", job.id, error)
        finally:
            gc.collect()  # a trainer and its model refer to each other
            give_back()
        if self._unfinished:
            self._begin_trigger()
        else:
            self._reset(decision, new_draft=result is not None and result.promoted)
        self._unfinished = False
        return result is not None

    def _urgent(self) -> str | None:
        """A job asks at every step; the buffer is read as often as between jobs. One that is away says nothing."""
        now = time.monotonic()
        if now - self._asked < self._config.distill.trigger.poll_seconds:
            return None
        self._asked = now
        try:
            return self._trigger.urgent()
        except OSError as error:
            logger.warning("whether there is anything more urgent than the job cannot be told: %s", error)
            return None

    def _begin_trigger(self) -> None:
        """By what the last job learned from: it may be less than what has come by now."""
        self._learned = self._records.last_job()
        self._trigger = DistillTrigger(
            self._config,
            self._buffer,
            self._learned,
            held_out=self._brought,
            target_id=weights_id(self._config.target),
        )

    def _reset(self, taken: Decision, *, new_draft: bool) -> None:
        self._learned = self._records.last_job()
        refused = 0 if self._learned is None else self._learned.refused_in_a_row
        self._trigger.reset(taken, new_draft=new_draft, refused_in_a_row=refused)

    def _warm(self) -> Iterator[None]:
        draft = self._config.draft
        return iter(()) if draft is None else self._resident.warm(draft, self._config, self._registry)

    def _warm_up(self) -> bool:
        """Whether there was anything left to warm up. Raises `StoreError`, after which it begins anew."""
        try:
            with store_errors(self._config):
                return next(self._warming, self) is None
        except StoreError:
            self._warming = self._warm()
            raise
        except (ModelError, VocabularyError, RegistryError) as error:
            logger.warning("the first job will begin cold: %s", error)
        return False

    def _is_enabled(self) -> bool:
        enabled = self._controls.read().loop_enabled
        if enabled != self._enabled:
            logger.info("the loop is %s", "on again" if enabled else "off: no new job begins")
            self._enabled = enabled
        return enabled
