"""One distillation job: from the replay buffer to a judged version in the adapter registry."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.job_record import Burst, RunningJob
from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.pipeline.models.draft_vocabulary import VocabularyError
from hotdraft.pipeline.models.names import ModelError
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.store.connection import (
    STORE_ONLY_ERRORS,
    StoreError,
    in_one_line,
    open_client,
    store_errors,
)
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.pipeline.system.json_file import BrokenFileError
from hotdraft.training.fit.resume import JobInterruptedError, StopSignal
from hotdraft.training.judging.evidence import GateEvidence
from hotdraft.training.judging.gate import Verdict
from hotdraft.training.judging.resident import Resident
from hotdraft.training.online.begin import begin, end_run, kept_or_dropped, standing_run
from hotdraft.training.online.compare import compare
from hotdraft.training.online.context import Interruption, JobCancelledError, JobContext, JobError, Urgent
from hotdraft.training.online.offer import offer
from hotdraft.training.online.publish import Judged, log_inputs
from hotdraft.training.online.recorded import open_recorded
from hotdraft.training.online.train import train_candidates
from hotdraft.training.online.unfinished import unfinished
from hotdraft.training.online.unproven import Unproven

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobResult:
    version: int | None
    """The version published, promoted or not; None if there was nothing fit to publish."""
    promoted: bool
    verdict: Verdict
    metrics: dict[str, float]
    run_id: str
    """The MLflow run."""
    seconds: float


def run_job(
    config: HotdraftConfig,
    *,
    buffer: ReplayBuffer,
    registry: AdapterRegistry,
    progress: bool = False,
    stop: StopSignal | None = None,
    job: RunningJob | None = None,
    burst: Burst | None = None,
    resident: Resident | None = None,
    urgent: Urgent | None = None,
) -> JobResult:
    """Train an adapter on the buffer, judge it against the champion, and promote or reject it.

    It begins where the champion is, or where a job left off whose gain could not be shown. It may be a `burst`.
    `resident` is what jobs before it left in this process. It gives way, dropped, to what is more `urgent`.

    It is judged on held-out prompts and on requests that came while it trained. If the champion moved since the
    verdict, it is judged again.

    A job that was killed is finished first: it goes on from its last checkpoint, on the requests it
    began with, or from its verdict. How it ends is put on record as the end of `job`, or of a new one.

    Raises `JobError` if the buffer or the draft does not allow a job, `JobRunningError` if one runs in
    this run directory, `JobInterruptedError` once `stop` is set, and `JobCancelledError` once the job
    is cancelled or gives way: that one is dropped. Raises `StoreError` if MLflow's store fails: what was done till
    then stays, and the next job goes on from there.
    """
    with job or JobRecords(config.run_dir).begin("command") as job, _end_on_record(job):
        began = time.monotonic()
        interruption, resident = Interruption(job, stop, urgent), resident or Resident()
        context = JobContext(config, buffer, registry, job, interruption, progress, resident)
        with store_errors(config):
            registry.champion()  # no job trains that could not be told of
        judged, evidence = _judged(context, burst)
        with kept_or_dropped(context), store_errors(config):
            published = offer(judged, evidence, job.run_id, job.work_folder, config, registry)
        judged, version, promoted = published.judged, published.version, published.promoted
        if version is not None and evidence is not None:
            resident.note(version, evidence.samples, evidence.candidates[judged.metrics["blend"]])
        Unproven(config).settle(judged)
        verdict, last = judged.verdict, JobRecords(config.run_dir).last_job()
        refused = 1 + (0 if last is None else last.refused_in_a_row) if verdict.is_hopeless else 0
        result = JobResult(version, promoted, verdict, judged.metrics, job.run_id, time.monotonic() - began)
        outcome: Literal["accepted", "rejected"] = "accepted" if verdict.accepted else "rejected"
        logger.info("version %s %s after %.0f s: %s", version, outcome, result.seconds, verdict.reason)
        job.end(
            outcome,
            verdict.reason,
            version=version,
            promoted=promoted,
            metrics=result.metrics,
            refused_in_a_row=refused,
        )
        _forget_refused(registry)
        return result


def _forget_refused(registry: AdapterRegistry) -> None:
    try:
        registry.forget_refused()
    except Exception as error:  # noqa: BLE001 -- each object store's client has errors of its own
        logger.warning("what versions refused long ago were stays in the store: %s", in_one_line(error))


def _judged(context: JobContext, burst: Burst | None) -> tuple[Judged, GateEvidence | None]:
    """The verdict to publish, of an unfinished job if there is one, and what it rests on."""
    job, config = context.job, context.config
    if (former := unfinished(JobRecords(config.run_dir), config)) is not None:
        job.note(former.work, former.run_id)
        if former.run_id is not None and (verdict := _verdict_in(job.work_folder)) is not None:
            with store_errors(config):
                job.note(replace(job.work, attempts=job.work.attempts + 1), standing_run(context, job.work.id))
            return verdict
        burst = job.work.burst
    if burst is not None:
        context.interruption.give_way_no_more()
    began, cpu_began = time.monotonic(), time.process_time()
    narrow = context.being(burst)
    with store_errors(config, STORE_ONLY_ERRORS):
        try:
            recorded = open_recorded(narrow)
        except JobCancelledError:
            if job.job.run_id is not None:
                end_run(open_client(config), job.job.run_id)
            raise
        begin(context, recorded, burst)
        with kept_or_dropped(context):
            log_inputs(open_client(config), job.run_id, narrow.config, recorded.data)
            trained = train_candidates(narrow, recorded)
            judged, evidence = compare(narrow, recorded, trained)
            spent = {"job_seconds": time.monotonic() - began, "cpu_seconds": time.process_time() - cpu_began}
            judged = replace(judged, metrics=judged.metrics | spent, at=time.time())
            judged.save(job.work_folder)
            context.interruption.check("the verdict was published")
    job.note(replace(job.work, attempts=0))
    return judged, evidence


@contextmanager
def _end_on_record(job: RunningJob) -> Iterator[None]:
    try:
        yield
    except (ModelError, VocabularyError) as error:
        raise JobError(str(error)) from error
    except (JobInterruptedError, JobCancelledError, StoreError) as end:
        job.end("cancelled" if isinstance(end, JobCancelledError) else "interrupted", str(end))
        raise


def _verdict_in(folder: Path) -> tuple[Judged, GateEvidence | None] | None:
    """What the job in `folder` came to, and on what; None if it has not, or it cannot be read."""
    try:
        judged = Judged.load(folder)
        return judged, None if judged.folder is None else GateEvidence.load(folder)
    except FileNotFoundError:
        return None
    except BrokenFileError as error:
        logger.warning("%s; the job goes on from its last checkpoint", error)
        return None
