"""The second stage of a job: begin it, or go on with one that was not finished; and its run in MLflow."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from mlflow import MlflowClient

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.store.connection import (
    STORE_ERRORS,
    STORE_ONLY_ERRORS,
    create_run,
    experiment_id,
    open_client,
)
from hotdraft.training.fit.resume import JobInterruptedError
from hotdraft.training.online.context import JobContext
from hotdraft.training.online.journal import JobState
from hotdraft.training.online.recorded import Recorded

logger = logging.getLogger(__name__)

JOB_TAG = "hotdraft.job"
"""Of a run: the job that made it."""


def take_up(context: JobContext) -> JobState | None:
    """The job to go on with. Those that are not to be gone on with are dropped, and their runs ended."""
    client, config, journal = open_client(context.config), context.config, context.journal
    for dropped in journal.drop_given_up():
        _end_run(client, dropped.run_id or _run_of(client, config, dropped.job_id))
    for folder in journal.leftovers():
        _end_run(client, _run_of(client, config, folder.name))
        journal.remove(folder)
    return journal.unfinished()


def begin(context: JobContext, recorded: Recorded, unfinished: JobState | None) -> JobState:
    """The `unfinished` job, or a new one, on disk and with its run."""
    journal, client = context.journal, open_client(context.config)
    state = unfinished or JobState(
        job_id=context.job.id,
        recipe=journal.recipe,
        last_request=recorded.last_request,
        parent_version=context.registry.champion(),
        run_id="",
        burst=context.burst,
    )
    journal.save(replace(state, attempts=state.attempts + 1))
    if not state.run_id:  # made once the job is known: whoever finds the one ends or takes over the other
        state = replace(state, run_id=_open_run(client, context.config, state.job_id))
        journal.save(replace(state, attempts=state.attempts + 1))
    context.job.note_run(state.run_id)
    logger.info(
        "job %s: %d requests to learn from, %d to be judged by, version %d to be beaten",
        state.job_id, len(recorded.data.train_rows), len(recorded.held_out), state.parent_version,
    )  # fmt: skip
    return state


@contextmanager
def kept_or_dropped(context: JobContext, state: JobState) -> Iterator[None]:
    """A job that is stopped within, or whose store fails, is kept for the next; what is dropped is forgotten."""
    try:
        yield
    except (JobInterruptedError, *STORE_ONLY_ERRORS):
        if (dropped := context.interruption.dropped) is not None:
            context.journal.drop(state)
            _end_run(open_client(context.config), state.run_id)
            raise dropped from None
        context.journal.save(replace(state, attempts=0))
        raise


def _open_run(client: MlflowClient, config: HotdraftConfig, job_id: str) -> str:
    experiment = experiment_id(client, config, config.tracking.training_experiment)
    return _run_of(client, config, job_id) or create_run(
        client, experiment, f"distill-{job_id}", "hotdraft distill", {JOB_TAG: job_id}
    )


def _run_of(client: MlflowClient, config: HotdraftConfig, job_id: str) -> str | None:
    """The run of a job that is under way as far as MLflow knows."""
    experiment = experiment_id(client, config, config.tracking.training_experiment)
    query = f"tags.`{JOB_TAG}` = '{job_id}' and attributes.status = 'RUNNING'"
    found = client.search_runs([experiment], query, max_results=1)
    return found[0].info.run_id if found else None


def _end_run(client: MlflowClient, run_id: str | None) -> None:
    """Of a job that was dropped."""
    if run_id is None:
        return
    try:
        client.set_terminated(run_id, status="KILLED")
    except STORE_ERRORS as error:
        logger.warning("MLflow was not told that run %s is over: %s", run_id, error)
