"""Choosing k for each round: the most tokens a second that acceptance and costs allow.

Drafting k tokens for a request yields 1 + a₁ + a₁a₂ + … + a₁…a_k tokens on average, where a_i is the
chance that its i-th drafted token is accepted if those before it were (Leviathan et al., 2023,
equation 1, without its assumption that all a_i are equal). All requests of a round draft the same k.
"""

from collections.abc import Sequence

import numpy as np

from hotdraft.serving.decoding.costs import RoundCosts
from hotdraft.serving.decoding.learned_costs import LearnedCosts, RoundSetting

MEMORY = 0.97
"""Weight of the past, by judged token."""
PRIOR_WEIGHT = 8.0
"""Judged tokens that the acceptance of all traffic counts for in a single request's."""
OPTIMISM = 0.6
"""Acceptance assumed before anything is known."""
MIN_GAIN = 1.02
"""Speed-up over plain decoding that drafting must promise: costs are measured with noise."""
EXPLORATION = 0.01
"""Share of time spent on a k one larger than the best known, without which nothing new is learnt."""


class AcceptanceEstimate:
    """Acceptance by drafted position, recent tokens counting most.

    A request's begins as `prior`, that of all traffic, which learns what it learns.
    """

    def __init__(self, max_k: int, prior: "AcceptanceEstimate | None" = None) -> None:
        self._prior = prior
        self._accepted = np.zeros(max_k)
        self._judged = np.zeros(max_k)

    def observe(self, num_accepted: int, k: int) -> None:
        """Take in a round of k drafted tokens."""
        judged = min(num_accepted + 1, k)
        self._judged[:judged] = MEMORY * self._judged[:judged] + 1
        self._accepted[:judged] *= MEMORY
        self._accepted[:num_accepted] += 1
        if self._prior is not None:
            self._prior.observe(num_accepted, k)

    def rates(self) -> np.ndarray:
        """a_i [max_k]."""
        prior = np.full(len(self._judged), OPTIMISM) if self._prior is None else self._prior.rates()
        return (self._accepted + PRIOR_WEIGHT * prior) / (self._judged + PRIOR_WEIGHT)

    def expected_tokens(self) -> np.ndarray:
        """Tokens [max_k + 1] that a round is expected to yield, by k."""
        return 1 + np.concatenate([[0.0], self.rates().cumprod().cumsum()])


class AdaptiveK:
    """Chooses k from 0 to `costs.max_k`, and spends a little time on trying one more."""

    def __init__(self, costs: RoundCosts) -> None:
        self.costs = costs
        self._learned = LearnedCosts(costs)
        self._allowance = 0.0
        """Seconds that may be lost to exploration."""

    def choose(
        self, estimates: Sequence[AcceptanceEstimate], longest: int, setting: RoundSetting | None = None
    ) -> int:
        """k for a round over requests with these `estimates`, the longest with `longest` tokens to go."""
        setting = setting or RoundSetting(len(estimates))
        tokens = np.sum([estimate.expected_tokens() for estimate in estimates], axis=0)
        seconds = self._learned.least_seconds(setting)
        speed = tokens / seconds
        speed[0] *= MIN_GAIN
        best = int(speed.argmax())
        # bounded: what a long good spell saves up must not be lost at once when acceptance falls
        self._allowance = min(self._allowance + EXPLORATION * float(seconds[best]), float(seconds[-1]))
        if best < self.costs.max_k:
            loss = float(seconds[best + 1] - tokens[best + 1] / speed[best])
            if loss <= self._allowance:
                self._allowance -= max(loss, 0.0)
                best += 1
        return min(best, longest - 1)

    def round_seconds(self, setting: RoundSetting, k: int) -> float:
        """What a round is expected to take."""
        return float(self._learned.seconds(setting)[k])

    def observe(self, setting: RoundSetting, k: int, seconds: float) -> None:
        """A round of k drafted tokens took `seconds`."""
        self._learned.observe(setting, k, seconds)
