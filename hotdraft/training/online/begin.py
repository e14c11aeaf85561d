"""The second stage of a job: begin it, or go on with one that was not finished; and its run in MLflow."""

import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from mlflow import MlflowClient
from mlflow.entities import Run

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.job_record import Burst, JobWork
from hotdraft.pipeline.store.connection import (
    STORE_ERRORS,
    STORE_ONLY_ERRORS,
    StoreError,
    create_run,
    experiment_id,
    has_run,
    open_client,
)
from hotdraft.training.batches.mixture import served
from hotdraft.training.batches.pools import mix_of
from hotdraft.training.fit.resume import JobInterruptedError
from hotdraft.training.judging.gate import effective_prompts, shown_worth
from hotdraft.training.online.context import JobContext
from hotdraft.training.online.recorded import Recorded
from hotdraft.training.online.unfinished import recipe

logger = logging.getLogger(__name__)

JOB_TAG = "hotdraft.job"
"""Of a run: the job that made it."""
MODEL_TAG = "hotdraft.registered_model"
"""Likewise: whose versions it makes."""
BESIDE_SECONDS = 3600
"""For which a run that has no end is taken for one under way: one of a folder that is given up never ends."""


def begin(context: JobContext, recorded: Recorded, burst: Burst | None) -> None:
    """Put on record what the job works at, unless it goes on with another, and its run; sweep what others left."""
    job, config, client = context.job, context.config, open_client(context.config)
    if (work := job.job.work) is None:
        work = JobWork(job.id, recipe(config), recorded.last_request, context.registry.champion(), burst)
        (config.run_dir / "jobs" / job.id).mkdir()
        job.note(work)  # before there is a run: whoever finds the one ends or takes over the other
    for folder in job.leftovers():
        if (left_running := _run_of(client, config, folder.name)) is not None:
            end_run(client, left_running)
        try:
            shutil.rmtree(folder)
        except OSError as error:
            logger.warning("what job %s left could not be deleted: %s", folder.name, error)
    job.note(replace(work, attempts=work.attempts + 1), standing_run(context, work.id))
    _tell_of_others(client, config, job.run_id)
    rows = recorded.data.train_rows
    logger.info(
        "job %s: %d requests to learn from, %d of them brought by the draft, %d to be judged by, "
        "version %d to be beaten",
        work.id, len(rows), len(rows) - len(served(rows)), len(recorded.held_out), work.parent_version,
    )  # fmt: skip
    mix = mix_of(recorded.data.domains, context.being(burst).config.distill)
    prompts = effective_prompts([sample.domain for sample in recorded.held_out], mix)
    if prompts < config.gate.min_prompts:
        logger.info(
            "job %s: what it is judged by is worth %s prompts of today's traffic so far, and the gate needs %d: "
            "it is rejected unless more come while it trains",
            work.id, shown_worth(prompts), config.gate.min_prompts,
        )  # fmt: skip


@contextmanager
def kept_or_dropped(context: JobContext) -> Iterator[None]:
    """A job that is stopped within, or whose store fails, is kept for the next, unless it is to be dropped."""
    try:
        yield
    except (JobInterruptedError, StoreError, *STORE_ONLY_ERRORS):
        job = context.job
        if (dropped := context.interruption.dropped) is not None:
            end_run(open_client(context.config), job.run_id)
            raise dropped from None
        job.note(replace(job.work, attempts=0))
        raise


def standing_run(context: JobContext, work_id: str) -> str:
    """The run of what the job works at: another where MLflow has it no more, or is another MLflow now."""
    client, run_id = open_client(context.config), context.job.job.run_id
    if run_id is not None and has_run(client, run_id):
        return run_id
    return _open_run(client, context.config, work_id)


def _open_run(client: MlflowClient, config: HotdraftConfig, job_id: str) -> str:
    experiment = experiment_id(client, config, config.tracking.training_experiment)
    tags = {JOB_TAG: job_id, MODEL_TAG: config.tracking.registered_model}
    return _run_of(client, config, job_id) or create_run(
        client, experiment, f"distill-{job_id}", "hotdraft distill", tags
    )


def _run_of(client: MlflowClient, config: HotdraftConfig, job_id: str) -> str | None:
    """The run of a job that is under way as far as MLflow knows."""
    found = _running(client, config, f"tags.`{JOB_TAG}` = '{job_id}'")
    return found[0].info.run_id if found else None


def _tell_of_others(client: MlflowClient, config: HotdraftConfig, run_id: str) -> None:
    since = int(1000 * (time.time() - BESIDE_SECONDS))
    model = config.tracking.registered_model
    for run in _running(client, config, f"attributes.start_time > {since} and tags.`{MODEL_TAG}` = '{model}'"):
        if run.info.run_id != run_id:
            logger.warning(
                "job %s of another run folder makes versions of %s as well: one trainer is enough, "
                "two learn the same and promote in turn",
                run.data.tags.get(JOB_TAG), model,
            )  # fmt: skip


def _running(client: MlflowClient, config: HotdraftConfig, condition: str) -> list[Run]:
    """Runs of jobs that have no end and meet `condition`."""
    experiment = experiment_id(client, config, config.tracking.training_experiment)
    return client.search_runs([experiment], f"attributes.status = 'RUNNING' and {condition}")


def end_run(client: MlflowClient, run_id: str) -> None:
    """Of a job that was dropped."""
    try:
        client.set_terminated(run_id, status="KILLED")
    except STORE_ERRORS as error:
        logger.warning("MLflow was not told that run %s is over: %s", run_id, error)
