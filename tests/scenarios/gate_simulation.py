"""Lineages of jobs whose candidates' true gains are known, judged by the real gate.

Spreads are those of real adapters: SmolLM2-135M with the shipped draft, three jobs in a row, scored on 60 requests
of the older domain (arithmetic) and 60 of the new one (text-to-SQL). One request's gain over the bare draft had a
standard deviation of 0.092 to 0.099 on the older and 0.112 to 0.134 on the new domain, over the version before
0.031 to 0.037 and 0.058 to 0.106.
"""

from dataclasses import dataclass

import numpy as np

from hotdraft.pipeline.config.learning import GateConfig
from hotdraft.training.judging.gate import judge

TODAY = "today"
OLDER_SPREAD, TODAY_SPREAD = 0.10, 0.13
CONFIG = GateConfig()


@dataclass(frozen=True)
class Setting:
    today: int = 48
    """Prompts of today's traffic that judge a job, new ones for each."""
    older: int = 96
    """Prompts of older domains together, which stay the same."""
    domains: int = 1
    """Older domains."""
    blends: int = 2
    gain: float = 0.1
    """What each candidate truly gains on today's traffic."""
    loss: float = 0.0
    """What each candidate truly loses on older domains, beside the champion."""
    losing: int | None = None
    """How many older domains lose; all if None."""


@dataclass(frozen=True)
class Lineage:
    accepted: int
    """Jobs whose candidate was accepted."""
    lost: float
    """Largest true loss on an older domain of any version that was accepted, against the first."""


def lineage(setting: Setting, generator: np.random.Generator, jobs: int = 20) -> Lineage:
    """Judge `jobs` candidates in turn; the first version is every older domain's best."""
    domains = np.array([TODAY] * setting.today + [f"d{index % setting.domains}" for index in range(setting.older)])
    older = domains != TODAY
    losing = np.isin(domains, [f"d{index}" for index in range(setting.losing or setting.domains)])
    spread = np.where(older, OLDER_SPREAD, TODAY_SPREAD) / np.sqrt(2)  # of one version: a gain is of two
    first = generator.normal(0, spread)
    champion, accepted, lost = first, 0, 0.0
    for _ in range(jobs):
        champion = np.where(older, champion, generator.normal(0, spread))
        means = np.where(older, -np.where(losing, lost + setting.loss, 0.0), setting.gain)
        offered = [means + generator.normal(0, spread) for _ in range(setting.blends)]
        best = np.where(older, first, champion)
        verdicts = [
            judge(champion, scores, domains, CONFIG, {TODAY: 1.0}, best_scores=best, offered=len(offered))
            for scores in offered
        ]
        chosen = max(range(len(offered)), key=lambda index: (verdicts[index].accepted, verdicts[index].gain))
        if verdicts[chosen].accepted:
            champion, accepted, lost = offered[chosen], accepted + 1, lost + setting.loss
    return Lineage(accepted, lost)


def lineages(setting: Setting, count: int, seed: int = 0, jobs: int = 20) -> list[Lineage]:
    return [lineage(setting, np.random.default_rng([seed, index]), jobs) for index in range(count)]


def promoted_by_chance(tokens: int, today: int, trials: int, seed: int = 0) -> float:
    """Share of candidates that gain nothing and are accepted, on answers of so few tokens.

    Champion and candidate accept each token with a chance of one half, by themselves: no shares are coarser. A job
    offers two candidates.
    """
    generator = np.random.default_rng([seed, tokens, today])
    domains = [TODAY] * today + ["older"] * 8
    lengths = [tokens] * today + [24] * 8
    accepted = 0
    for champion, candidate in generator.binomial(tokens, 0.5, (trials, 2, today)) / tokens:
        scores = (np.append(one, np.full(8, 0.5)) for one in (champion, candidate))
        accepted += judge(*scores, domains, CONFIG, {TODAY: 1.0}, tokens=lengths, offered=2).accepted
    return accepted / trials
