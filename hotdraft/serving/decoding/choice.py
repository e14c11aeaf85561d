"""Choosing what a round proposes: the most tokens a second that acceptance and costs allow.

For a row with m tokens guessed from text and j drafted behind them a round yields
1 + g₁ + … + g₁…g_m + g₁…g_m (a₁ + … + a₁…a_j) tokens on average, where g and a are the chances that a token is
accepted if those before it were (Leviathan et al., 2023, equation 1, without its assumption that all are equal).
Rows choose for themselves; they share the steps of the draft model and the target's pass.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hotdraft.serving.decoding.costs import RoundCosts
from hotdraft.serving.decoding.learned_costs import ExpectedCosts, LearnedCosts, RoundSetting
from hotdraft.serving.decoding.outlook import Outlook, tokens_of
from hotdraft.serving.decoding.round_time import Best, PaddedTime, RaggedTime, RoundTime, total
from hotdraft.serving.decoding.rounds import RoundSeconds

MIN_GAIN = 1.02
"""Speed-up over plain decoding that proposals must promise: costs are measured with noise."""
EXPLORATION = 0.01
"""Share of time spent on drafting one token more than is best, without which nothing new is learnt."""
ALONE = 0.1
"""Share of time that may be lost where the draft proposes alone: only so is seen what it is worth."""
MOST_SAVED = 1.0
"""Seconds of it that are saved up."""
RECENT = 0.95
"""Weight of the past, by round, in the speed that time saved is worth."""


class Choice(NamedTuple):
    """Of each row."""

    guessed: list[int]
    drafted: list[int]
    floors: list[float] | None = None
    """See `ProposalPlan.floors`."""
    alternatives: list[int] | None = None
    saved: list[float] | None = None
    """Seconds that what the draft proposes is expected to save, over the best without it."""


class ProposalChoice:
    """Chooses by costs measured once and corrected by every round since."""

    def __init__(
        self, costs: RoundCosts, max_k: int, most_proposed: int | None = None, *, padded: bool = False
    ) -> None:
        """Of `most_proposed` tokens a row, by default as many as were measured; see `PaddedTime` for `padded`."""
        self.costs = costs
        self.most_proposed = min(costs.most, most_proposed or costs.most)
        self._max_k = max_k
        self._learned = LearnedCosts(costs, max_k, padded=padded)
        self._recent: dict[int, tuple[float, float]] = {}
        """Tokens that were expected of the last rounds if nothing had been drafted, and seconds, by rows."""
        self._allowance = 0.0
        """Seconds that may be lost to exploration."""
        self._for_alone = 0.0
        """Likewise to rows with `draft_alone`."""
        self._for_more = 0.0
        """Likewise to one second choice more than is best."""
        self._is_trial = False
        """Whether the draft is asked only to learn what it is worth, which what it has missed is read for too."""

    @property
    def can_draft_alone(self) -> bool:
        """Whether another row with `draft_alone` may begin."""
        return self._for_alone >= 0

    def choose(self, rows: Sequence[Outlook], setting: RoundSetting | None = None) -> Choice:
        """For a round over `rows`."""
        setting = setting or RoundSetting(len(rows))
        expected = self._learned.expected(setting)
        least, drafting = expected.least_verifying, expected.least_drafting
        # what several rows read is known by how much all of them do: no length of one row is untried
        verifying = least if len(rows) == 1 else expected.verifying
        plain = MIN_GAIN * len(rows) / least[0]
        reading = plain * (verifying[-1] - verifying[0]) / len(rows) / max(self.costs.most, 1)
        tokens = tokens_of(rows, self._max_k, self.most_proposed, reading)
        time = self._time(len(rows), tokens.shape[1] - 1, verifying, drafting)
        guessed, drafted, speed, costs = best = time.best(tokens, plain)
        seconds = time.seconds(guessed, drafted)
        without = (tokens[:, :, 0] - speed * costs[:, 0]).argmax(1).tolist()
        none = [0] * len(rows)
        undrafted = self._without(len(rows), total(tokens, without, none), time.seconds(without, none))
        step = time.steps.item(max(drafted)) / max(sum(map(bool, drafted)), 1)
        saved = []
        for row, (m, j, other) in enumerate(zip(guessed, drafted, without, strict=True)):
            more = tokens.item(row, m, j) - tokens.item(row, other, 0)
            longer = costs.item(m, j) - costs.item(other, 0) + step
            saved.append(more / undrafted - longer if j else 0.0)
        self._for_alone = min(self._for_alone + ALONE * seconds, MOST_SAVED)
        guessed, drafted = self._drafting_alone(rows, tokens, time, best)
        # bounded: what a long good spell saves up must not be lost at once when acceptance falls
        most = time.steps.item(-1) + costs.item(0, -1)
        self._allowance = min(self._allowance + EXPLORATION * seconds, most)
        explored = self._explored(tokens, time, guessed, drafted, speed)
        self._is_trial = max(explored) > 0 == max(drafted)
        return Choice(
            guessed,
            explored,
            _floors(rows, guessed, speed * self._seconds_of_one_more(expected) / len(rows)),
            self._alternatives(rows, guessed, explored, speed * verifying / len(rows), seconds * speed),
            saved,
        )

    def rested(self, setting: RoundSetting) -> None:
        """A round went by that proposed nothing, for which nobody chose."""
        seconds = self.plain_seconds(setting)
        self._without(setting.rows, setting.rows, seconds)
        self._allowance += EXPLORATION * seconds
        self._for_alone = min(self._for_alone + ALONE * seconds, MOST_SAVED)

    def plain_seconds(self, setting: RoundSetting) -> float:
        """What a round that proposes nothing is expected to take."""
        return self._learned.expected(setting).verifying.item(0)

    def observe(
        self, setting: RoundSetting, num_read: Sequence[int], drafted: Sequence[int], seconds: RoundSeconds
    ) -> None:
        """A round whose target read so many proposed tokens of each row, of which some drafted, took `seconds`."""
        if self._is_trial and seconds.caught_up and seconds.proposing is not None:
            self._allowance -= max(0.0, seconds.proposing - self._learned.drafting_of(setting, drafted))
        verified = max(num_read) if self._learned.padded else sum(num_read) / len(num_read)
        self._learned.observe(setting, verified, drafted, seconds)

    def _time(self, rows: int, longest: int, verifying: np.ndarray, drafting: np.ndarray) -> RoundTime:
        if self._learned.padded:
            return PaddedTime(verifying, drafting, longest)
        return RaggedTime(verifying, drafting, rows, self._learned.share_of_one(rows), longest)

    def _without(self, rows: int, tokens: float, seconds: float) -> float:
        """Tokens a second of this round and the last ones over so many rows, if nothing had been drafted.

        A token of a poor round is worth the time that one takes in all of them, and not in that round: where text
        soon guesses again, little is lost without a draft.
        """
        before = self._recent.get(rows, (0.0, 0.0))
        after = self._recent[rows] = (RECENT * before[0] + tokens, RECENT * before[1] + seconds)
        return after[0] / after[1]

    def _drafting_alone(
        self, rows: Sequence[Outlook], tokens: np.ndarray, time: RoundTime, best: Best
    ) -> tuple[list[int], list[int]]:
        """What is guessed and drafted where the rows with `draft_alone` do no more than that."""
        guessed, drafted, speed, costs = best
        alone = [row.draft_alone and len(row.drafted) > 0 and row.most > 0 for row in rows]
        if not any(alone):
            return guessed, drafted
        worth = tokens - speed * costs
        likeliest = (1 + worth[:, 0, 1:].argmax(1)).tolist()
        mixed = zip(alone, guessed, drafted, likeliest, strict=True)
        plans = [(0, most) if is_alone else (m, j) for is_alone, m, j, most in mixed]
        apart = [m for m, _ in plans], [j for _, j in plans]
        before, after = (
            total(worth, m, j) - speed * time.steps.item(max(j)) for m, j in ((guessed, drafted), apart)
        )
        self._for_alone -= max(before - after, 0.0) / speed
        return apart

    def _alternatives(
        self,
        rows: Sequence[Outlook],
        guessed: Sequence[int],
        drafted: Sequence[int],
        prices: np.ndarray,
        tokens: float,
    ) -> list[int] | None:
        """How many pay behind what a row proposes, now and then one more, if any do.

        `prices` in tokens of reading so many in a row, `tokens` of the whole round.
        """
        if not any(len(row.alternatives) for row in rows):
            return None
        counts = []
        self._for_more = min(self._for_more + EXPLORATION * tokens, float(prices[-1]))
        for row, before, behind in zip(rows, guessed, drafted, strict=True):
            most = min(len(row.alternatives), self.costs.most - before - behind) if behind else 0
            gains = row.guessed[:before].prod() * row.alternatives[: max(most, 0)].cumsum()
            worth = gains - (prices[before + behind + 1 :][: len(gains)] - prices[before + behind])
            worth = np.concatenate([[0.0], worth])
            count = int(worth.argmax())
            if count + 1 < len(worth) and worth[count] - worth[count + 1] <= self._for_more:
                self._for_more -= worth[count] - worth[count + 1]
                count += 1
            counts.append(count)
        return counts if any(counts) else None

    def _seconds_of_one_more(self, expected: ExpectedCosts) -> float:
        """What another drafted token is expected to cost in all rows."""
        if self._max_k == 0 or self.costs.most == 0:
            return 0.0
        verifying, drafting = expected.verifying, expected.drafting
        # the first step has more to read than those after it
        step = (drafting[-1] - drafting[1]) / (self._max_k - 1) if self._max_k > 1 else drafting[1]
        longest = min(self._max_k, self.costs.most)  # what else is read is no reason to stop
        verified = (verifying[longest] - verifying[0]) / longest
        return float(verified + max(step, 0.0))

    def _explored(
        self,
        tokens: np.ndarray,
        time: RoundTime,
        guessed: list[int],
        drafted: list[int],
        speed: float,
    ) -> list[int]:
        """`drafted`, now and then with one token more in the rows that draft most."""
        most = max(drafted)
        if most == self._max_k:
            return drafted
        further = [
            j + (j == most and tokens.item(row, m, j + 1) > -np.inf)
            for row, (m, j) in enumerate(zip(guessed, drafted, strict=True))
        ]
        if further == drafted:
            return drafted
        loss = time.seconds(guessed, further) - total(tokens, guessed, further) / speed
        if loss > self._allowance:
            return drafted
        self._allowance -= max(loss, 0.0)
        return further


def _floors(rows: Sequence[Outlook], guessed: Sequence[int], price: float) -> list[float]:
    """See `ProposalPlan.floors`, where another drafted token costs as much time as `price` tokens take."""
    floors = []
    for row, count in zip(rows, guessed, strict=True):
        # of the positions the first: before it no draft ends
        worth = row.guessed[:count].prod() * row.drafted[0] if len(row.drafted) else 0.0
        floors.append(float(price / worth) if worth > 0 else np.inf)
    return floors
