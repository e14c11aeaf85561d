"""The trainer that stays: distil whenever the trigger says so."""

import logging
from typing import Protocol

from pipeline.config import HotdraftConfig
from pipeline.loop import DistillTrigger
from pipeline.registry import AdapterRegistry
from pipeline.replay import ReplayBuffer
from training.job import JobError, run_job
from training.journal import JobJournal
from training.run import JobInterruptedError, StopSignal

logger = logging.getLogger(__name__)


class StopEvent(StopSignal, Protocol):
    """A signal that can be waited for."""

    def wait(self, timeout: float | None = None) -> bool: ...


def follow(config: HotdraftConfig, stop: StopEvent) -> None:
    """Poll the replay buffer and run jobs until `stop` is set; an unfinished job is resumed first."""
    buffer = ReplayBuffer.of(config)
    registry = AdapterRegistry(config)
    journal = JobJournal(config)
    trigger = DistillTrigger(config, buffer, journal.last_request())
    unfinished = journal.unfinished() is not None
    while not stop.is_set():
        decision = trigger.decide()
        if decision.due or unfinished:
            logger.info("distilling: %s", "an unfinished job" if unfinished else decision.reason)
            accepted = False
            try:
                result = run_job(config, buffer=buffer, registry=registry, stop=stop)
            except JobInterruptedError as interruption:
                logger.info("%s; it goes on at the next start", interruption)
                return
            except JobError as error:
                logger.error("no job: %s", error)
            else:
                accepted = result.verdict.accepted
                logger.info(
                    "version %s %s after %.0f s: %s",
                    result.version, "accepted" if accepted else "rejected",
                    result.seconds, result.verdict.reason,
                )  # fmt: skip
            trigger.reset(new_draft=accepted)
            unfinished = False
        stop.wait(config.distill.trigger.poll_seconds)
