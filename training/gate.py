"""The verdict on a candidate: paired with the champion on the same held-out requests."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.config import GateConfig

RESAMPLES = 2000


@dataclass(frozen=True)
class Verdict:
    """Gains are differences of expected acceptance, candidate minus champion; NaN if not known."""

    accepted: bool
    reason: str
    requests: int
    gain: float
    gain_low: float
    """Lower end of the bootstrap interval on `gain`."""
    gain_high: float
    by_domain: dict[str, float]
    """Gain by domain, whatever the number of its requests."""


def refused(reason: str, requests: int = 0) -> Verdict:
    """A refusal for which nothing could be measured."""
    nan = float("nan")
    return Verdict(False, reason, requests, nan, nan, nan, {})


def judge(
    champion_scores: np.ndarray, candidate_scores: np.ndarray, domains: Sequence[str], config: GateConfig
) -> Verdict:
    """Accept a candidate that is better beyond doubt on the whole and not much worse anywhere.

    Scores [R] are expected acceptance by request, `domains` has R entries. The lower end of the paired
    percentile bootstrap interval of the mean gain must exceed `min_gain`, and no domain of at least
    `min_requests` requests may lose more than `max_domain_loss`, by more than a standard error: an old domain
    often has few requests, and chance alone must not keep a draft from learning a new one.
    """
    requests = len(domains)
    if requests < config.min_requests:
        return refused(f"{requests} held-out requests, at least {config.min_requests} are needed", requests)
    gains = np.asarray(candidate_scores, float) - np.asarray(champion_scores, float)
    if not np.isfinite(gains).all():
        return refused("scores are not finite", requests)
    groups = {str(name): gains[np.asarray(domains) == name] for name in sorted(set(domains))}
    draws = np.random.default_rng(0).integers(requests, size=(RESAMPLES, requests))
    outside = (1 - config.confidence) / 2
    low, high = np.quantile(gains[draws].mean(axis=1), [outside, 1 - outside])
    losing = {
        name: group.mean()
        for name, group in groups.items()
        if len(group) >= config.min_requests and group.mean() + _error(group) < -config.max_domain_loss
    }
    if losing:
        worst = min(losing, key=losing.__getitem__)
        reason = f"loses {-losing[worst]:.3f} on {worst}, allowed are {config.max_domain_loss:.3f}"
    elif low <= config.min_gain:
        reason = f"gain {gains.mean():+.3f}, at least {low:+.3f}, is not above {config.min_gain:+.3f}"
    else:
        reason = f"gain {gains.mean():+.3f}, at least {low:+.3f}, on {requests} held-out requests"
    return Verdict(
        accepted=not losing and bool(low > config.min_gain),
        reason=reason,
        requests=requests,
        gain=float(gains.mean()),
        gain_low=float(low),
        gain_high=float(high),
        by_domain={name: float(group.mean()) for name, group in groups.items()},
    )


def _error(gains: np.ndarray) -> float:
    """Standard error of the mean."""
    return float(gains.std(ddof=1) / np.sqrt(len(gains))) if len(gains) > 1 else 0.0
