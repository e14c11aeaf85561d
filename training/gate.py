"""The verdict on a candidate: paired with the champion on the same held-out requests."""

from collections.abc import Mapping, Sequence
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
    champion_scores: np.ndarray,
    candidate_scores: np.ndarray,
    domains: Sequence[str],
    config: GateConfig,
    mix: Mapping[str, float] | None = None,
) -> Verdict:
    """Accept a candidate that is better beyond doubt on today's traffic and not much worse anywhere.

    Scores [R] are expected acceptance by request, `domains` has R entries. The gain is the mean over domains,
    weighted by their shares in `mix`, the newest traffic's (over all requests if there is none): a domain that
    is new counts for what it is today, however few of its requests are held out so far. The lower
    end of its paired percentile bootstrap interval, drawn within domains, must exceed `min_gain`. No domain of
    at least `min_requests` requests may lose more than `max_domain_loss`, by more than a standard error: an old
    domain often has few requests, and chance alone must not keep a draft from learning a new one.
    """
    requests = len(domains)
    if requests < config.min_requests:
        return refused(f"{requests} held-out requests, at least {config.min_requests} are needed", requests)
    gains = np.asarray(candidate_scores, float) - np.asarray(champion_scores, float)
    if not np.isfinite(gains).all():
        return refused("scores are not finite", requests)
    groups = {str(name): gains[np.asarray(domains) == name] for name in sorted(set(domains))}
    strata = _strata(groups, mix or {}) or [(1.0, gains)]
    generator = np.random.default_rng(0)
    draws = sum(share * generator.choice(group, (RESAMPLES, len(group))).mean(axis=1) for share, group in strata)
    gain = float(sum(share * group.mean() for share, group in strata))
    outside = (1 - config.confidence) / 2
    low, high = np.quantile(draws, [outside, 1 - outside])
    losing = {
        name: group.mean()
        for name, group in groups.items()
        if len(group) >= config.min_requests and group.mean() + _error(group) < -config.max_domain_loss
    }
    if losing:
        worst = min(losing, key=losing.__getitem__)
        reason = f"loses {-losing[worst]:.3f} on {worst}, allowed are {config.max_domain_loss:.3f}"
    elif low <= config.min_gain:
        reason = f"gain {gain:+.3f}, at least {low:+.3f}, is not above {config.min_gain:+.3f}"
    else:
        reason = f"gain {gain:+.3f}, at least {low:+.3f}, on {requests} held-out requests"
    return Verdict(
        accepted=not losing and bool(low > config.min_gain),
        reason=reason,
        requests=requests,
        gain=gain,
        gain_low=float(low),
        gain_high=float(high),
        by_domain={name: float(group.mean()) for name, group in groups.items()},
    )


def _strata(groups: Mapping[str, np.ndarray], mix: Mapping[str, float]) -> list[tuple[float, np.ndarray]]:
    """Weights, together 1, and gains of the domains of `mix`; of one request alone chance cannot be told."""
    known = {name: mix[name] for name, group in groups.items() if name in mix and len(group) > 1}
    return [(weight / sum(known.values()), groups[name]) for name, weight in known.items()]


def _error(gains: np.ndarray) -> float:
    """Standard error of the mean."""
    return float(gains.std(ddof=1) / np.sqrt(len(gains))) if len(gains) > 1 else 0.0
