"""The fourth stage of a job: compare its candidates with the champion."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.training.judging.candidate import Candidate
from hotdraft.training.judging.evidence import GateEvidence, VersionScores
from hotdraft.training.judging.gate import refused
from hotdraft.training.online.contest import contest
from hotdraft.training.online.context import JobContext
from hotdraft.training.online.newcomers import Newcomers
from hotdraft.training.online.publish import Judged, window_tags
from hotdraft.training.online.recorded import Recorded
from hotdraft.training.online.train import Trained
from hotdraft.training.scoring.evaluate import by_request

logger = logging.getLogger(__name__)


def compare(context: JobContext, recorded: Recorded, trained: Trained) -> tuple[Judged, GateEvidence | None]:
    """The verdict on the best of the candidates, and what it rests on, which is kept in the job's folder."""
    verdict = refused(trained.refusal, len(recorded.held_out))
    judged = Judged(verdict, {**trained.metrics}, window_tags(recorded.data.train_rows), None, time.time())
    if not trained.candidates:
        return judged, None
    judged.tags["parent"] = str(trained.candidates[0].card.parent_version)
    samples, mix = _asked(context, recorded)
    known = context.resident.scores
    scores = VersionScores(trained.draft, context.registry, context.config.distill, samples, known)
    folder = context.job.work_folder
    for evidence in _evidence(context, trained, samples, mix):
        judged = contest(judged, evidence, scores, folder, context.registry, context.config)
        if judged.verdict.accepted:
            break
    evidence.save(folder)
    return judged, evidence


def _asked(context: JobContext, recorded: Recorded) -> tuple[list[ReplaySample], Mapping[str, float]]:
    """The held-out requests and those that came since the job began, and today's mix."""
    work = context.job.work
    newcomers = Newcomers(context.buffer, recorded.data, work.last_request, context.config)
    held_out, fresh, mix = newcomers.wait(recorded.held_out, context.interruption)
    logger.info("job %s: judged by %d requests more, which came since", work.id, len(fresh))
    return [*held_out, *fresh], mix


def _evidence(
    context: JobContext, trained: Trained, samples: Sequence[ReplaySample], mix: Mapping[str, float]
) -> Iterator[GateEvidence]:
    """Of the candidate that went furthest, then of the next beside it, and so on."""

    def scores(of: Candidate) -> np.ndarray:
        return by_request(trained.draft.chances(of.adapter, samples, context.config.distill.batch_tokens))

    judged: dict[float, np.ndarray] = {}
    for candidate in sorted(trained.candidates, key=lambda one: one.blend, reverse=True):
        judged[candidate.blend] = scores(candidate)
        yield GateEvidence(samples, mix, dict(judged), len(trained.candidates))
