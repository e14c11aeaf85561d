"""The verdict on a candidate: paired on the same requests, with the champion for its gain and with the best that
each domain ever had for what it may lose.

Few prompts say little of their own spread, so intervals are Student's, of variances shrunk towards `SPREAD`. How
often this errs stands in docs/learning.md.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.special import stdtrit

from hotdraft.pipeline.config.learning import GateConfig

SPREAD = 0.13
"""Standard deviation of one request's gain that is taken before any is seen: 0.03 to 0.13 on real pairs."""
USUAL_TOKENS = 24
"""Of an answer. A shorter one's share of accepted tokens is coarser: the variance grows as the tokens get fewer."""
SPREAD_WEIGHT = 5
"""Requests that this counts as."""
LONE_PROMPTS = 3
"""Prompts of a domain that is guarded by itself; those with fewer are guarded together."""
FALSE_ALARM = 0.1
"""Chance that the guards, all together, refuse a version that loses nothing."""
LOST = 0.05
"""Chance to think that the champion has lost what it has not."""


@dataclass(frozen=True)
class Verdict:
    """Gains are differences of expected acceptance, candidate minus champion; NaN if not known."""

    accepted: bool
    reason: str
    requests: int
    gain: float
    gain_low: float
    """Lower end of the interval on `gain`."""
    gain_high: float
    by_domain: dict[str, float]
    """Gain by domain, whatever the number of its requests."""
    loses: bool = False
    """Refused for what it loses, on a domain or on several together."""
    loss_high: float = float("nan")
    """Largest loss, of any domain or group of them against its best, that the requests do not rule out."""
    too_few: bool = False
    """Refused for what its prompts are worth: whether it gains cannot be said."""

    @property
    def is_promising(self) -> bool:
        """Refused, but for too little evidence: it seems better, and to lose nothing."""
        return not self.accepted and not self.loses and self.gain > 0

    @property
    def is_hopeless(self) -> bool:
        """It gains nothing, or loses something, and more of the same would not help; never without evidence."""
        return not self.accepted and (self.loses or (self.gain <= 0 and not self.too_few))


def refused(reason: str, requests: int = 0) -> Verdict:
    """A refusal for which nothing could be measured."""
    nan = float("nan")
    return Verdict(False, reason, requests, nan, nan, nan, {})


@dataclass(frozen=True)
class Estimate:
    """Of a mean: its value, standard error and degrees of freedom."""

    value: float
    error: float
    freedom: float

    @classmethod
    def plain(cls, gains: np.ndarray, tokens: np.ndarray) -> Self:
        """Of the mean of gains [n] alike, on answers of so many `tokens` [n]."""
        count, mean = len(gains), gains.sum() / len(gains)
        freedom = count - 1 + SPREAD_WEIGHT
        usual = SPREAD**2 * np.maximum(1.0, USUAL_TOKENS / tokens).mean()
        squares = SPREAD_WEIGHT * usual + np.square(gains - mean).sum()
        return cls(float(mean), math.sqrt(squares / freedom / count), freedom)

    @classmethod
    def of(cls, weighted: Sequence[tuple[float, Self]]) -> Self:
        """Of the sum over strata of weight times mean; freedom by Welch and Satterthwaite."""
        value = sum(weight * mean.value for weight, mean in weighted)
        parts = [(weight * mean.error) ** 2 for weight, mean in weighted]
        shares = sum(part**2 / mean.freedom for part, (_, mean) in zip(parts, weighted, strict=True))
        return cls(value, math.sqrt(sum(parts)), sum(parts) ** 2 / shares)

    def margin(self, tail: float) -> float:
        """Half the width of the interval that leaves `tail` of the chance on either side."""
        return -float(stdtrit(self.freedom, tail)) * self.error


def judge(
    champion_scores: np.ndarray,
    candidate_scores: np.ndarray,
    domains: Sequence[str],
    config: GateConfig,
    mix: Mapping[str, float] | None = None,
    *,
    best_scores: np.ndarray | None = None,
    tokens: Sequence[int] | np.ndarray | None = None,
    offered: int = 1,
) -> Verdict:
    """Accept a candidate that is better beyond doubt on today's traffic and not much worse anywhere.

    Scores [R] are expected acceptance by request, each of another prompt; `domains` has R entries. The gain is the
    mean over domains, weighted by their shares in `mix`, the newest traffic's (over all requests if there is none):
    a domain that is new counts for what it is today, and one without a prompt as if it gained nothing. It must rest
    on `min_prompts`, and the lower end of its interval must exceed `min_gain`. Of the `offered` candidates of a job
    the best passes, so each has its part of the chance to err.

    `best_scores` [R] are those of the best version that each request's domain ever had, the champion's if not
    given: see `Guard` for what may be lost. `tokens` [R] are those of the answers, `USUAL_TOKENS` if not given.
    """
    requests = len(domains)
    if requests < config.min_requests:
        return refused(f"{requests} held-out requests, at least {config.min_requests} are needed", requests)
    champion, candidate = np.asarray(champion_scores, float), np.asarray(candidate_scores, float)
    best = champion if best_scores is None else np.asarray(best_scores, float)
    if not np.isfinite([champion, candidate, best]).all():
        return refused("scores are not finite", requests)
    names, gains = np.asarray(domains), candidate - champion
    lengths = np.full(requests, USUAL_TOKENS) if tokens is None else np.asarray(tokens)
    prompts, tail = effective_prompts(names, mix), tail_of(config, offered)
    if not prompts:
        return refused("no unseen prompt of today's traffic", requests)
    shares = mix or {str(name): float((names == name).mean()) for name in np.unique(names)}
    strata = [(share, names == name) for name, share in shares.items() if name in names]
    estimate = Estimate.of([(share, Estimate.plain(gains[rows], lengths[rows])) for share, rows in strata])
    low, high = (estimate.value + side * estimate.margin(tail) for side in (-1, 1))
    guards = guards_of(names, lengths, mix or {}, config.max_domain_loss, tail)
    losing = [guard for guard in guards if guard.loses(candidate, champion, best)]
    loss_high = max(guard.loss_high(candidate - best) for guard in guards)
    gained = f"gain {estimate.value:+.3f}, at least {low:+.3f},"
    accepted = too_few = False
    if losing:
        worst = min(losing, key=lambda guard: guard.estimate(candidate - best).value)
        lost, at_most = -worst.estimate(candidate - best).value, worst.loss_high(candidate - best)
        reason = (
            f"loses {lost:.3f} on {worst.name} against its best, and {at_most:.3f} for all that is known: "
            f"allowed are {config.max_domain_loss:.3f}"
        )
    elif prompts < config.min_prompts:
        too_few = True
        worth = shown_worth(prompts)
        reason = f"worth {worth} unseen prompts of today's traffic, at least {config.min_prompts} are needed"
    elif low <= config.min_gain:
        reason = f"{gained} is not above {config.min_gain:+.3f}"
    else:
        accepted = True
        reason = f"{gained} on {requests} unseen prompts"
        if loss_high > config.max_domain_loss:
            reason += f"; so few prompts of a domain would hide a loss of up to {loss_high:.2f} on it"
    return Verdict(
        accepted=accepted,
        reason=reason,
        requests=requests,
        gain=estimate.value,
        gain_low=low,
        gain_high=high,
        by_domain={str(name): float(gains[names == name].mean()) for name in np.unique(names)},
        loses=bool(losing),
        loss_high=loss_high,
        too_few=too_few,
    )


@dataclass(frozen=True)
class Guard:
    """One domain, or several together, that must not lose more than `allowed` against the best they ever had.

    A loss of `allowed` passes by a chance of at most `tail` wherever there are requests enough for that. Where
    there are not, the bar is what a version that loses nothing misses by a chance of `alarm`: a draft must be able
    to learn something new though little is left of the old.
    """

    name: str
    rows: np.ndarray
    """bool [R]: the requests of these domains."""
    tokens: np.ndarray
    """int [R]: those of the answers."""
    allowed: float
    tail: float
    alarm: float

    def estimate(self, differences: np.ndarray) -> Estimate:
        return Estimate.plain(differences[self.rows], self.tokens[self.rows])

    def loses(self, candidate: np.ndarray, champion: np.ndarray, best: np.ndarray) -> bool:
        """Scores [R]. What the champion has lost beyond doubt is not charged to one that adds nothing to it."""
        found = self.estimate(candidate - best)
        if found.value >= min(found.margin(self.tail) - self.allowed, -found.margin(self.alarm)):
            return False
        before = self.estimate(champion - best)
        lost_before = before.value + before.margin(LOST) < -self.allowed
        return not (lost_before and self.estimate(candidate - champion).value >= 0)

    def loss_high(self, differences: np.ndarray) -> float:
        found = self.estimate(differences)
        return found.margin(self.tail) - found.value


def guards_of(
    names: np.ndarray, tokens: np.ndarray, mix: Mapping[str, float], allowed: float, tail: float
) -> list[Guard]:
    """Of all domains but today's together, of every domain with `LONE_PROMPTS`, and of those with fewer together.

    Together they tell what none of many small ones could: that a draft forgets everywhere. So the first of these
    may raise as many false alarms as all others.
    """
    counts = Counter(names.tolist())
    older = frozenset(name for name in counts if name not in mix)
    small = frozenset(name for name, count in counts.items() if count < LONE_PROMPTS)
    groups = {frozenset([name]): name for name in counts if name not in small}
    groups |= {
        group: f"{len(group)} {kind} domains" for group, kind in ((small, "small"), (older, "older")) if group
    }
    others = len(groups.keys() - {older})
    alarms = {group: FALSE_ALARM / 2 / (1 if group == older else others) for group in groups}
    return [
        Guard(name if len(group) > 1 else min(group), rows, tokens, allowed, tail, alarms[group])
        for group, name in groups.items()
        for rows in [np.isin(names, list(group))]
    ]


def tail_of(config: GateConfig, offered: int) -> float:
    """Chance to err that each of `offered` candidates has, on either side of its interval."""
    return (1 - config.confidence) / 2 / offered


def shown_worth(prompts: float) -> str:
    """Rounded down: what is too little is not to look like enough."""
    return f"{math.floor(10 * prompts) / 10:.1f}"


def effective_prompts(names: Sequence[str] | np.ndarray, mix: Mapping[str, float] | None) -> float:
    """How many equally weighted prompts those of domains `names` [R] are worth, in a mean by the shares in `mix`.

    Kish's number, times the share of the mix that there are prompts of.
    """
    if not mix:
        return float(len(names))
    counts = Counter(map(str, names))
    shares = {name: share for name, share in mix.items() if counts[name]}
    covered = sum(shares.values())
    return covered**3 / sum(share**2 / counts[name] for name, share in shares.items()) if shares else 0.0
