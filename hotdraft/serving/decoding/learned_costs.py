"""What rounds cost as they turn out: the costs measured at the start, corrected by every round since.

Those are of greedy rounds over short contexts. Filters, penalties and long contexts cost more, some of it for
every drafted token, and a trainer beside the server slows all of it.
"""

import math
from typing import NamedTuple

import numpy as np

from hotdraft.serving.decoding.costs import RoundCosts

CLIP = 0.5
"""Largest surprise, in the log of seconds, that one round may teach: a pause says nothing."""
PACE_RATE = 0.1
"""How fast the pace of the whole machine is followed. The settings' own costs are learnt relative to it: what slows
every round must not look like the cost of the k that is in use."""
RATE = 0.02
"""How fast a setting's costs are followed once known."""
MEMORY = 0.998
"""Weight of the past, by round in the same setting: a k not tried for long is unknown again."""
DOUBT = 0.25
"""How much less, in the log of seconds, a k may cost that was never tried in a setting."""
PLAIN_DOUBT = 0.75
"""The same of k = 0, which all others are held against."""


class RoundSetting(NamedTuple):
    """What a round's cost depends on beside k."""

    rows: int
    context: int = 0
    """Tokens of the longest row."""
    kind: tuple[bool, ...] = ()
    """`SamplingBatch.kind`."""


class _Learned:
    """Of the settings that are alike, by k: rounds seen, and log of their cost over measured cost and pace."""

    def __init__(self, inherited: np.ndarray) -> None:
        self.rounds = np.zeros(len(inherited))
        self._inherited = inherited
        self._own = np.zeros(len(inherited))

    @property
    def effects(self) -> np.ndarray:
        """What was never tried costs as much more as its neighbours do."""
        tried = np.flatnonzero(self.rounds)
        if not len(tried):
            return self._inherited
        return self._inherited + np.interp(np.arange(len(self.rounds)), tried, self._own[tried])

    @property
    def doubt(self) -> np.ndarray:
        """By how much the cost may be overrated; before any round all are as good as measured."""
        if not self.rounds.any():
            return np.zeros(len(self.rounds))
        never = np.where(np.arange(len(self.rounds)) == 0, PLAIN_DOUBT, DOUBT)
        return never / np.sqrt(1 + self.rounds)

    def learn(self, k: int, surprise: float) -> None:
        self._own = self.effects - self._inherited
        self._own[k] += max(1 / (self.rounds[k] + 2), RATE) * surprise
        self.rounds *= MEMORY
        self.rounds[k] += 1


class LearnedCosts:
    """Seconds of a round = those measured x pace of the machine x what is learnt of its setting and k.

    Settings are alike if rows and context agree up to a factor of 2 and the kind is the same. One never seen begins
    as the last of its kind.
    """

    def __init__(self, measured: RoundCosts) -> None:
        self.measured = measured
        self._pace: float | None = None
        self._learned: dict[RoundSetting, _Learned] = {}
        self._latest: dict[tuple[bool, ...], np.ndarray] = {}
        """Effects of the setting seen last, by kind."""

    def seconds(self, setting: RoundSetting) -> np.ndarray:
        """What a round is expected to take, [max_k + 1]."""
        measured = [self.measured.round_seconds(setting.rows, k) for k in range(self.measured.max_k + 1)]
        return np.array(measured) * np.exp((self._pace or 0.0) + self._of(setting).effects)

    def least_seconds(self, setting: RoundSetting) -> np.ndarray:
        """What it might take at best, [max_k + 1]: who always takes the best by these tries all that matter."""
        return self.seconds(setting) * np.exp(-self._of(setting).doubt)

    def observe(self, setting: RoundSetting, k: int, seconds: float) -> None:
        """A round took `seconds`."""
        surprise = math.log(max(seconds, 1e-9) / float(self.seconds(setting)[k]))
        if self._pace is None:
            self._pace, surprise = surprise, 0.0
        surprise = min(max(surprise, -CLIP), CLIP)
        self._pace += PACE_RATE * surprise
        learned = self._learned.setdefault(_alike(setting), self._of(setting))
        learned.learn(k, surprise)
        self._latest[setting.kind] = learned.effects

    def _of(self, setting: RoundSetting) -> _Learned:
        known = self._learned.get(_alike(setting))
        return known or _Learned(self._latest.get(setting.kind, np.zeros(self.measured.max_k + 1)))


def _alike(setting: RoundSetting) -> RoundSetting:
    """One setting for all that are alike."""
    return RoundSetting(setting.rows.bit_length(), max(setting.context, 64).bit_length(), setting.kind)
