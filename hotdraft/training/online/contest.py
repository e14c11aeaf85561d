"""A job's candidates against the champion, and against the best that each domain ever had."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.store.domains import name_part
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.judging.anchors import anchors_tag, held_against, read_anchors
from hotdraft.training.judging.candidate import candidate_folder
from hotdraft.training.judging.evidence import GateEvidence, VersionScores
from hotdraft.training.judging.gate import Estimate, judge, tail_of
from hotdraft.training.online.publish import Judged, gain_metrics, gate_tags


def contest(
    judged: Judged,
    evidence: GateEvidence,
    scores: VersionScores,
    job_folder: Path,
    registry: AdapterRegistry,
    config: HotdraftConfig,
    blends: Iterable[float] | None = None,
) -> Judged:
    """`judged` with the verdict on the best candidate, or of those at `blends`, against what is champion now."""
    champion = registry.champion()
    of_champion = scores.of_champion(champion)
    tokens = np.array([len(sample.output_ids) for sample in evidence.samples])
    domains = np.array([name_part(sample.domain) for sample in evidence.samples])
    known = read_anchors(champion, registry.version(champion).tags) if champion else {}
    anchors = held_against(np.unique(domains).tolist(), known, champion)
    best = _best_scores(anchors, domains, of_champion, scores)
    offered = evidence.offered
    verdicts = {
        blend: judge(
            of_champion, evidence.candidates[blend], [sample.domain for sample in evidence.samples], config.gate,
            evidence.mix, best_scores=best, tokens=tokens, offered=offered,
        )
        for blend in blends or evidence.candidates
    }  # fmt: skip
    blend, verdict = max(verdicts.items(), key=lambda item: (item[1].accepted, not item[1].loses, item[1].gain))
    candidate = evidence.candidates[blend]
    tail = tail_of(config.gate, offered)
    of_domain = {domain: domains == domain for domain in anchors}
    better = [name for name, rows in of_domain.items() if _is_better((candidate - best)[rows], tokens[rows], tail)]
    metrics = {
        "champion_expected_acceptance": float(of_champion.mean()),
        "candidate_expected_acceptance": float(candidate.mean()),
        "blend": blend,
        **gain_metrics(verdict),
    }
    tags = {name: f"{value:.6f}" for name, value in metrics.items()}  # shown with 3, as the reason rounds them
    tags |= gate_tags(domains, of_champion, candidate) | anchors_tag(anchors | known, better)
    tags |= {"held_out_requests": str(verdict.requests), "judged_against": str(champion)}
    return replace(
        judged,
        verdict=verdict,
        metrics={**judged.metrics, **metrics},
        tags={**judged.tags, **tags},
        folder=candidate_folder(job_folder, blend),
        champion=champion,
    )


def _best_scores(
    anchors: Mapping[str, int], domains: np.ndarray, of_champion: np.ndarray, scores: VersionScores
) -> np.ndarray:
    """Scores [R] of what each request's domain is held against: the champion's where that cannot be had."""
    best = of_champion.copy()
    for version in sorted(set(anchors.values())):
        rows = np.isin(domains, [domain for domain, anchor in anchors.items() if anchor == version])
        found = scores.of_best(version, rows)
        if found is not None:
            best[rows] = found[rows]
    return best


def _is_better(gains: np.ndarray, tokens: np.ndarray, tail: float) -> bool:
    found = Estimate.plain(gains, tokens)
    return found.value > found.margin(tail)
