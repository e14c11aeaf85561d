"""The fourth stage of a job: compare its candidates with the champion."""

import logging
import time
from collections import Counter
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


def compare(context: JobContext, recorded: Recorded, trained: Trained) -> Judged:
    """The verdict on the best of the candidates, and what it rests on is kept in the job's folder."""
    verdict = refused(trained.refusal, len(recorded.held_out))
    judged = Judged(verdict, {**trained.metrics}, window_tags(recorded.data.train_rows), None, time.time())
    if not trained.candidates:
        return judged
    judged.tags["parent"] = str(trained.candidates[0].card.parent_version)
    samples, mix = _asked(context, recorded)
    known = context.resident.scores
    scores = VersionScores(trained.draft, context.registry, context.config.distill, samples, known)
    folder = context.job.work_folder
    for evidence in _evidence(context, trained, samples, mix):
        judged = contest(judged, evidence, scores, folder, context.registry, context.config)
        if not judged.verdict.loses:
            break
    evidence.save(folder)
    context.interruption.check("the verdict was published")
    return judged


def _asked(context: JobContext, recorded: Recorded) -> tuple[list[ReplaySample], Mapping[str, float]]:
    """The held-out requests and those that came since the job began, and today's mix."""
    work = context.job.work
    newcomers = Newcomers(context.buffer, recorded.data, work.last_request, context.config)
    fresh, mix = newcomers.wait(recorded.held_out, context.interruption)
    logger.info("job %s: judged by %d requests more, which came since", work.id, len(fresh))
    return [*recorded.held_out, *fresh], mix


def _evidence(
    context: JobContext, trained: Trained, samples: Sequence[ReplaySample], mix: Mapping[str, float]
) -> Iterator[GateEvidence]:
    """Of the candidate that does best on today's traffic, then of the next beside it, and so on.

    What guards older domains is asked last, and of those alone that come so far.
    """
    candidates = trained.candidates

    def scores(of: Candidate, at: np.ndarray) -> np.ndarray:
        asked = [samples[row] for row in at]
        return by_request(trained.draft.chances(of.adapter, asked, context.config.distill.batch_tokens))

    domains = np.array([sample.domain for sample in samples], object)
    is_today = np.isin(domains, list(mix))
    today, older = np.flatnonzero(is_today), np.flatnonzero(~is_today)
    counts = Counter(domains[today])
    weights = np.array([mix[domain] / counts[domain] for domain in domains[today]])
    of_today = [scores(one, today) for one in candidates]
    means = [np.nan_to_num(weights @ found, nan=-np.inf) for found in of_today]
    judged: dict[float, np.ndarray] = {}
    for place in np.argsort(means)[::-1]:
        whole = np.empty(len(samples))
        whole[today], whole[older] = of_today[place], scores(candidates[place], older)
        judged[candidates[place].blend] = whole
        yield GateEvidence(samples, mix, judged, len(candidates))
