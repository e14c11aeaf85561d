"""Which job is gone on with: none begun with other settings, and none that dies again and again."""

import hashlib
import json
import logging

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.job_record import Job
from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.pipeline.models.loading import fingerprint

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 3


def recipe(config: HotdraftConfig) -> str:
    """That of `JobWork`, with the draft's present weights."""
    parts = {
        "target": config.target,
        "draft": config.draft,
        "weights": None if config.draft is None else fingerprint(config.draft),
        "dtype": config.dtype,
        "draft_vocab_size": config.engine.draft_vocab_size,
        "draft_window": config.engine.served_window,
        "held_out_fraction": config.replay.held_out_fraction,
        "distill": config.distill.recipe(),
        "gate": config.gate.model_dump(mode="json", exclude={"wait_seconds"}),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def unfinished(records: JobRecords, config: HotdraftConfig) -> Job | None:
    """The job to go on with."""
    job = records.unfinished()
    if job is None or job.work is None:
        return None
    if job.work.recipe != recipe(config):
        why = "the configuration has changed since"
    elif job.work.attempts >= MAX_ATTEMPTS:
        why = f"it died {job.work.attempts} times"
    else:
        logger.info("going on with the unfinished job %s", job.work.id)
        return job
    logger.warning("not going on with job %s: %s", job.work.id, why)
    return None
