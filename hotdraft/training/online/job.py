"""One distillation job: from the replay buffer to a judged version in the adapter registry."""

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import lightning
import numpy as np
import torch
from filelock import FileLock, Timeout
from mlflow import MlflowClient

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.job_record import RunningJob
from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.pipeline.models.adapter_folder import AdapterCard, AdapterError
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.replay.rows import ReplayRows
from hotdraft.pipeline.store.connection import (
    STORE_ERRORS,
    STORE_ONLY_ERRORS,
    StoreError,
    create_run,
    experiment_id,
    open_client,
    store_errors,
)
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.pipeline.system.json_file import BrokenFileError
from hotdraft.training.batches.packing import DataError
from hotdraft.training.batches.pools import mix_of
from hotdraft.training.batches.replay_data import ReplayDataModule
from hotdraft.training.drafts.model_size import read_config
from hotdraft.training.fit.lora import build_lora, resolve_quantization, target_modules
from hotdraft.training.fit.module import NonFiniteLossError
from hotdraft.training.fit.run import JobInterruptedError, StopSignal, train
from hotdraft.training.judging.candidate import Candidate, candidates, trainable
from hotdraft.training.judging.evidence import Evidence, VersionScores
from hotdraft.training.judging.gate import Verdict, refused
from hotdraft.training.judging.parent import initial_adapter, with_parent
from hotdraft.training.judging.served_check import UnlikeServedError, check_served
from hotdraft.training.judging.served_draft import ServedDraft, load_draft
from hotdraft.training.online.interruption import Interruption, JobCancelledError
from hotdraft.training.online.journal import JobJournal, JobState
from hotdraft.training.online.newcomers import Newcomers
from hotdraft.training.online.offer import judge_again, offer
from hotdraft.training.online.publish import Judged, log_inputs, window_tags
from hotdraft.training.online.rehearsal import rehearsed
from hotdraft.training.scoring.evaluate import by_request

logger = logging.getLogger(__name__)


JOB_TAG = "hotdraft.job"
"""Of a run: the job that made it."""


class JobError(ValueError):
    """A job that cannot start: nothing to train on, nothing to judge by, no draft, no turn."""


@dataclass(frozen=True)
class JobResult:
    version: int | None
    """The version published, promoted or rejected; None if there was nothing fit to publish."""
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
) -> JobResult:
    """Train an adapter on the buffer, judge it against the champion, and promote or reject it.

    It is judged on held-out prompts and on requests that came while it trained. If the champion moved since the
    verdict, it is judged again.

    A job that was killed is finished first: it goes on from its last checkpoint, on the requests it
    began with, or from its verdict. How it ends is put on record as the end of `job`, or of a new one.

    Raises `JobError` if the buffer or the draft does not allow a job, `JobRunningError` if one runs in
    this run directory, `JobInterruptedError` once `stop` is set, and `JobCancelledError` once the job
    is cancelled: that one is dropped. Raises `StoreError` if MLflow's store fails: what was done till
    then stays, and the next job goes on from there.
    """
    if config.distill.threads is not None:
        torch.set_num_threads(config.distill.threads)
    with job or JobRecords(config.run_dir).begin("command") as job:
        journal = JobJournal(config)
        try:
            with FileLock(journal.folder / ".lock", timeout=0):
                with store_errors(config):
                    registry.champion()  # no job trains that could not be told of
                began = time.monotonic()
                state, judged = _judged(config, buffer, registry, journal, job, stop, progress)
                with store_errors(config):
                    version, judged = offer(judged, state.run_id, journal.job_folder(state), config, registry)
                journal.finish(state, accepted=judged.verdict.accepted)
        except Timeout as error:
            raise JobError(f"another process runs a job in {config.run_dir}") from error
        except (JobInterruptedError, JobCancelledError, StoreError) as end:
            job.end("cancelled" if isinstance(end, JobCancelledError) else "interrupted", str(end))
            raise
        result = JobResult(version, judged.verdict, judged.metrics, state.run_id, time.monotonic() - began)
        verdict = result.verdict
        outcome: Literal["accepted", "rejected"] = "accepted" if verdict.accepted else "rejected"
        logger.info("version %s %s after %.0f s: %s", version, outcome, result.seconds, verdict.reason)
        job.end(outcome, verdict.reason, version=version, metrics=result.metrics)
        return result


def _judged(
    config: HotdraftConfig,
    buffer: ReplayBuffer,
    registry: AdapterRegistry,
    journal: JobJournal,
    job: RunningJob,
    stop: StopSignal | None,
    progress: bool,
) -> tuple[JobState, Judged]:
    """The job to publish: an unfinished one if there is, which may have come to its verdict before."""
    client = open_client(config)
    for dropped in journal.drop_given_up():
        _end_run(client, dropped.run_id or _run_of(client, config, dropped.job_id))
    for folder in journal.leftovers():
        _end_run(client, _run_of(client, config, folder.name))
        journal.remove(folder)
    unfinished = journal.unfinished()
    if unfinished is not None:
        judged = _verdict_in(journal.job_folder(unfinished))
        if judged is not None:
            job.note_run(unfinished.run_id)
            return unfinished, judged
    with store_errors(config, STORE_ONLY_ERRORS):
        training = _Job(config, buffer, registry, journal, job, stop, unfinished)
        judged = training.run(progress)
    judged.save(journal.job_folder(training.state))
    journal.save(replace(training.state, attempts=0))
    return training.state, judged


class _Job:
    def __init__(
        self,
        config: HotdraftConfig,
        buffer: ReplayBuffer,
        registry: AdapterRegistry,
        journal: JobJournal,
        job: RunningJob,
        stop: StopSignal | None,
        unfinished: JobState | None,
    ) -> None:
        self._began, self._cpu_began = time.monotonic(), time.process_time()
        self._config = config
        self._buffer = buffer
        self._registry = registry
        self._journal = journal
        self._interruption = Interruption(job, stop)
        self._client = open_client(config)
        rows = buffer.rows()
        if not len(rows):
            raise JobError("the replay buffer is empty: let traffic pass through `hotdraft serve` first")
        self._data = self._open_data(rows, unfinished)
        self._held_out = self._data.held_out_by_domain(mix_of(self._data.domains, config.distill), config.gate)
        if len(self._held_out) < config.gate.min_requests:
            raise JobError(
                f"the replay buffer has {len(self._held_out)} held-out prompts in {len(rows)} requests, "
                f"{self._data.left_out} left out, the gate needs {config.gate.min_requests}: let more traffic pass"
            )
        self._state = unfinished or self._begin(rows, job.id)
        journal.save(replace(self._state, attempts=self._state.attempts + 1))
        if not self._state.run_id:  # made once the job is known: whoever finds the one ends or takes over the other
            self._state = replace(self._state, run_id=self._open_run())
            journal.save(replace(self._state, attempts=self._state.attempts + 1))
        job.note_run(self._state.run_id)
        logger.info(
            "job %s: %d requests to learn from, %d to be judged by, version %d to be beaten",
            self._state.job_id, len(self._data.train_rows), len(self._held_out), self._state.parent_version,
        )  # fmt: skip

    @property
    def state(self) -> JobState:
        return self._state

    def run(self, progress: bool) -> Judged:
        """Train and judge. Stopped, or with a store that fails, the job goes on from its last checkpoint."""
        try:
            log_inputs(self._client, self._state.run_id, self._config, self._data)
            return self._run(progress)
        except (JobInterruptedError, *STORE_ONLY_ERRORS):
            if self._interruption.is_cancellation:
                self._journal.drop(self._state)
                _end_run(self._client, self._state.run_id)
                raise JobCancelledError("cancelled before its verdict") from None
            self._journal.save(replace(self._state, attempts=0))
            raise

    def _run(self, progress: bool) -> Judged:
        lightning.seed_everything(self._config.distill.seed, verbose=False)
        self._interruption.check("the draft was loaded")
        draft = self._load_draft()
        self._interruption.check("the champion was judged")
        chances = draft.chances(draft.parent, self._held_out, self._config.distill.batch_tokens)
        parent_scores = by_request(chances)
        if not np.isfinite(parent_scores).all():
            raise JobError("the draft's expected acceptance before the first step is not finite")
        metrics = {"champion_expected_acceptance": float(parent_scores.mean())}
        metrics["requests_left_out"] = float(self._data.left_out)
        judged = Judged(refused(""), metrics, window_tags(self._data.train_rows), None, time.time())
        parent = self._state.parent_version
        try:
            check_served(self._held_out, chances, 0 if draft.parent is None else parent)
            offered = self._train(draft, metrics, progress)
        except (UnlikeServedError, NonFiniteLossError, AdapterError) as error:
            judged = replace(judged, verdict=refused(str(error), len(self._held_out)))
        else:
            judged.tags["parent"] = str(offered[0].card.parent_version)
            evidence = self._evidence(draft, offered)
            scores = VersionScores(draft, self._registry, self._config.distill, evidence.samples)
            scores.tell(parent, parent_scores)
            folder = self._journal.job_folder(self._state)
            judged = judge_again(judged, evidence, scores, folder, self._registry, self._config)
            evidence.save(folder)
            self._interruption.check("the verdict was published")
        judged.metrics["job_seconds"] = time.monotonic() - self._began
        judged.metrics["cpu_seconds"] = time.process_time() - self._cpu_began
        return replace(judged, at=time.time())

    def _evidence(self, draft: ServedDraft, offered: Sequence[Candidate]) -> Evidence:
        """The held-out requests and those that came since the job began, and what the candidates do on them."""
        fresh, mix = Newcomers(self._buffer, self._data, self._state.last_request, self._config).wait(
            self._held_out, self._interruption
        )
        samples = [*self._held_out, *fresh]
        logger.info("job %s: judged by %d requests more, which came since", self._state.job_id, len(fresh))
        batch_tokens = self._config.distill.batch_tokens
        scores = {one.blend: by_request(draft.chances(one.adapter, samples, batch_tokens)) for one in offered}
        return Evidence(samples, mix, scores)

    def _open_data(self, rows: ReplayRows, unfinished: JobState | None) -> ReplayDataModule:
        if unfinished is not None:
            rows = rows.up_to(unfinished.last_request)
        config = self._config
        vocab_size = None if config.draft is None else read_config(config.draft).get_text_config().vocab_size
        try:
            return ReplayDataModule.online(rows, config.distill, config.replay.held_out_fraction, vocab_size)
        except DataError as error:
            raise JobError(str(error)) from error

    def _begin(self, rows: ReplayRows, job_id: str) -> JobState:
        return JobState(
            job_id=job_id,
            recipe=self._journal.recipe,
            last_request=rows.newest,
            parent_version=self._registry.champion(),
            run_id="",
        )

    def _open_run(self) -> str:
        config, job_id = self._config, self._state.job_id
        experiment = experiment_id(self._client, config, config.tracking.training_experiment)
        tags = {JOB_TAG: job_id}
        return _run_of(self._client, config, job_id) or create_run(
            self._client, experiment, f"distill-{job_id}", "hotdraft distill", tags
        )

    def _load_draft(self) -> ServedDraft:
        config = self._config
        if config.draft is None:
            raise JobError("the configuration names no draft to improve")
        draft = load_draft(config.draft, config)
        return with_parent(draft, self._registry, self._state.parent_version)

    def _train(self, draft: ServedDraft, metrics: dict[str, float], progress: bool) -> list[Candidate]:
        """Train, and offer what came of it to the gate."""
        distill = self._config.distill
        self._interruption.check("training began")
        quantization = resolve_quantization(distill.quantization, draft.base)
        initial = initial_adapter(draft, distill, quantization)
        model = build_lora(draft.base, distill.lora, quantization, initial=initial)
        start = trainable(model)
        rows = self._data.train_rows
        ranking = None if draft.head_size is None else draft.rank(self._data.drawn(distill.window_requests))
        if distill.older_targets == "champion":
            self._data.rehearse(partial(rehearsed, draft.model(draft.parent)))
        metrics |= train(
            model,
            self._data,
            distill,
            tracking_uri=self._config.tracking_uri,
            run_id=self._state.run_id,
            checkpoints=self._journal.job_folder(self._state) / "checkpoints",
            progress=progress,
            stop=self._interruption,
            vocabulary=draft.covered(ranking),
        )
        self._interruption.check("the candidates were judged")
        card = AdapterCard(
            base_fingerprint=draft.fingerprint,
            quantization=quantization,
            rank=distill.lora.rank,
            alpha=distill.lora.alpha,
            target_modules=target_modules(draft.base, distill.lora.target_modules),
            parent_version=self._state.parent_version if initial is not None else 0,
            requests=len(rows),
            tokens=int(rows.column("output_tokens").sum()),
            domains=dict(Counter(rows["domain"])),
            created_at=time.time(),
        )
        folder = self._journal.job_folder(self._state)
        return candidates(model, start, draft, card, ranking, self._held_out[-1], distill.blends, folder)


def _verdict_in(folder: Path) -> Judged | None:
    """What the job in `folder` came to; None if it has not, or it cannot be read."""
    try:
        return Judged.load(folder)
    except FileNotFoundError:
        return None
    except BrokenFileError as error:
        logger.warning("%s; the job goes on from its last checkpoint", error)
        return None


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
