"""What rounds cost as they turn out: the costs measured at the start, corrected by every round since.

Those are of greedy rounds over short contexts. Filters, penalties and long contexts cost more, some of it for
every drafted token, and a trainer beside the server slows all of it.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hotdraft.serving.decoding.costs import RoundCosts
from hotdraft.serving.decoding.rounds import RoundSeconds

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
    """Of the settings that are alike, by tokens: rounds seen, and log of their cost over measured cost and pace."""

    def __init__(self, inherited: np.ndarray) -> None:
        self.rounds = np.zeros(len(inherited))
        self.doubt = np.zeros(len(inherited))
        """By how much the cost may be overrated; before any round all are as good as measured."""
        self.effects = inherited
        """What was never tried costs as much more as its neighbours do."""
        self._inherited = inherited
        self._of_untried = np.array([PLAIN_DOUBT, *[DOUBT] * (len(inherited) - 1)])

    def learn(self, k: int, surprise: float) -> None:
        own = self.effects - self._inherited
        own[k] += max(1 / (self.rounds[k] + 2), RATE) * surprise
        self.rounds *= MEMORY
        self.rounds[k] += 1
        self.doubt = self._of_untried / np.sqrt(1 + self.rounds)
        tried = np.flatnonzero(self.rounds)
        self.effects = self._inherited + np.interp(np.arange(len(own)), tried, own[tried])


class _Costs:
    """Of one part of a round: what is learnt of each setting."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._learned: dict[RoundSetting, _Learned] = {}
        self._latest: dict[tuple[bool, ...], np.ndarray] = {}
        """Effects of the setting seen last, by kind."""

    def of(self, setting: RoundSetting) -> _Learned:
        known = self._learned.get(_alike(setting))
        return known or _Learned(self._latest.get(setting.kind, np.zeros(self._size)))

    def learn(self, setting: RoundSetting, index: int, surprise: float) -> None:
        learned = self._learned.setdefault(_alike(setting), self.of(setting))
        learned.learn(index, surprise)
        self._latest[setting.kind] = learned.effects


class ExpectedCosts(NamedTuple):
    """Seconds that parts of a round are expected to take by tokens of each row, and might take at least.

    Who always takes the best by the least tries all that matter.
    """

    verifying: np.ndarray
    """[most + 1]."""
    drafting: np.ndarray
    """[max_k + 1]."""
    least_verifying: np.ndarray
    least_drafting: np.ndarray


class LearnedCosts:
    """Seconds = those measured x pace of the machine x what is learnt of the setting and of how many tokens it is.

    Settings are alike if rows and context agree up to a factor of 2 and the kind is the same. One never seen begins
    as the last of its kind.
    """

    def __init__(self, measured: RoundCosts, max_k: int, *, padded: bool = False) -> None:
        """Where rounds are `padded`, all rows take as long as the one that drafts or reads most."""
        self.measured = measured
        self.padded = padded
        self._pace: float | None = None
        self._verifying = _Costs(measured.most + 1)
        self._drafting = _Costs(max_k + 1)
        self._tokens, self._steps = np.arange(measured.most + 1), np.arange(max_k + 1)
        self._expected: dict[tuple[int, RoundSetting], ExpectedCosts] = {}
        """Of settings that were asked about since the last round."""

    def expected(self, setting: RoundSetting) -> ExpectedCosts:
        alike = _alike(setting)
        known = self._expected.get((setting.rows, alike))
        if known is None:
            of_verifying, of_drafting = self._verifying.of(setting), self._drafting.of(setting)
            pace = self._pace or 0.0
            verifying = self.measured.verify_seconds(setting.rows) * np.exp(pace + of_verifying.effects)
            step = self.measured.draft_step_seconds(setting.rows)
            drafting = step * self._steps * np.exp(pace + of_drafting.effects)
            known = ExpectedCosts(
                verifying,
                drafting,
                verifying * np.exp(-of_verifying.doubt),
                drafting * np.exp(-of_drafting.doubt),
            )
            self._expected[setting.rows, alike] = known
        return known

    def drafting_of(self, setting: RoundSetting, drafted: Sequence[int]) -> float:
        """What it is expected to take to draft `drafted` [B] tokens."""
        return self.expected(setting).drafting.item(max(drafted)) * self._share(drafted)

    def share_of_one(self, rows: int) -> float:
        """Of what a draft step of all rows takes, what one of a single row does."""
        together = self.measured.draft_step_seconds(rows)
        return min(1.0, self.measured.draft_step_seconds(1) / together) if together else 1.0

    def observe(
        self, setting: RoundSetting, verified: float, drafted: Sequence[int], seconds: RoundSeconds
    ) -> None:
        """A round that verified so many tokens a row on average, and drafted `drafted` [B], took `seconds`.

        Where the proposer caught up it says nothing of what drafting costs.
        """
        if seconds.caught_up and seconds.proposing is None:
            return
        expected = float(np.interp(verified, self._tokens, self.expected(setting).verifying))
        steps, drafting = max(drafted), self.drafting_of(setting, drafted)
        verify_seconds, draft_seconds = seconds.verifying, seconds.proposing
        if draft_seconds is None:  # as far as can be told
            draft_seconds = seconds.verifying * drafting / (expected + drafting)
            verify_seconds -= draft_seconds
        surprise = math.log(max(verify_seconds, 1e-9) / expected)
        if self._pace is None:
            self._pace, surprise = surprise, 0.0
        surprise = min(max(surprise, -CLIP), CLIP)
        self._pace += PACE_RATE * surprise
        self._verifying.learn(setting, min(round(verified), self.measured.most), surprise)
        if steps and drafting > 0 and not seconds.caught_up:
            surprise = math.log(max(draft_seconds, 1e-9) / drafting)
            self._drafting.learn(setting, steps, min(max(surprise, -CLIP), CLIP))
        self._expected.clear()

    def _share(self, drafted: Sequence[int]) -> float:
        """Of what the steps would take if all rows drafted as many tokens as the first does."""
        rows, steps = len(drafted), max(drafted)
        if rows == 1 or steps == 0 or self.padded:
            return 1.0
        one, active = self.share_of_one(rows), sum(drafted) / steps
        return one + (1 - one) * (active - 1) / (rows - 1)


def _alike(setting: RoundSetting) -> RoundSetting:
    """One setting for all that are alike."""
    return RoundSetting(setting.rows.bit_length(), max(setting.context, 64).bit_length(), setting.kind)
