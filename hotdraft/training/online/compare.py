"""The fourth stage of a job: compare its candidates with the champion."""

import logging
import time

from hotdraft.training.judging.evidence import GateEvidence, VersionScores
from hotdraft.training.judging.gate import refused
from hotdraft.training.online.contest import contest
from hotdraft.training.online.context import JobContext
from hotdraft.training.online.journal import JobState
from hotdraft.training.online.newcomers import Newcomers
from hotdraft.training.online.publish import Judged, window_tags
from hotdraft.training.online.recorded import Recorded
from hotdraft.training.online.train import Trained
from hotdraft.training.scoring.evaluate import by_request

logger = logging.getLogger(__name__)


def compare(context: JobContext, recorded: Recorded, state: JobState, trained: Trained) -> Judged:
    """The verdict on the best of the candidates, and what it rests on is kept in the job's folder."""
    verdict = refused(trained.refusal, len(recorded.held_out))
    judged = Judged(verdict, {**trained.metrics}, window_tags(recorded.data.train_rows), None, time.time())
    if not trained.candidates:
        return judged
    judged.tags["parent"] = str(trained.candidates[0].card.parent_version)
    evidence = _evidence(context, recorded, state, trained)
    known = context.resident.scores
    scores = VersionScores(trained.draft, context.registry, context.config.distill, evidence.samples, known)
    folder = context.journal.job_folder(state)
    judged = contest(judged, evidence, scores, folder, context.registry, context.config)
    evidence.save(folder)
    context.interruption.check("the verdict was published")
    return judged


def _evidence(context: JobContext, recorded: Recorded, state: JobState, trained: Trained) -> GateEvidence:
    """The held-out requests and those that came since the job began, and what the candidates do on them."""
    newcomers = Newcomers(context.buffer, recorded.data, state.last_request, context.config)
    fresh, mix = newcomers.wait(recorded.held_out, context.interruption)
    samples = [*recorded.held_out, *fresh]
    logger.info("job %s: judged by %d requests more, which came since", state.job_id, len(fresh))
    batch_tokens = context.config.distill.batch_tokens
    scores = {
        one.blend: by_request(trained.draft.chances(one.adapter, samples, batch_tokens))
        for one in trained.candidates
    }
    return GateEvidence(samples, mix, scores)
