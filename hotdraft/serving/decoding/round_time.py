"""What a round takes by what its rows propose, and what they best propose.

`tokens` [B, M+1, K+1] are what each of B rows yields with m tokens guessed and j drafted behind them, -inf where it
may not. What is guessed and drafted are numbers by row, in lists: between two passes over a model's weights Python
has to be read anew from memory, of which NumPy's calls take several times as much as plain numbers do.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

SEARCHES = 4
"""Looks for the best plan at the speed that the last one promised; two nearly always agree."""


class Best(NamedTuple):
    guessed: list[int]
    drafted: list[int]
    speed: float
    """Tokens a second."""
    costs: np.ndarray
    """Seconds [M+1, K+1] that a row's proposal adds to such a round, beside the steps."""


class RaggedTime:
    """Where of each row as much is computed as it proposes."""

    def __init__(self, verifying: np.ndarray, drafting: np.ndarray, rows: int, one: float, longest: int) -> None:
        """Of up to `longest` guessed tokens; `one` is the share of all rows' draft step that a single one takes.

        `verifying` are seconds of as many tokens in each row, and `drafting` [K+1] of as many steps of all rows.
        """
        # a step of the draft is paid once for all rows that still draft, and some more for each
        each = drafting * (1 - one) / max(rows - 1, 1)
        self.steps = drafting - rows * each
        """Seconds [K+1] of drafting so many tokens in whatever rows draft."""
        self._costs = (verifying[_lengths(longest, drafting, verifying)] - verifying[0]) / rows + each
        self._plain = float(verifying[0])

    def best(self, tokens: np.ndarray, speed: float) -> Best:
        """Of the most tokens a second; nothing where `speed` is no less.

        As Dinkelbach does: what is best at a speed promises a higher one, until it promises the same.
        """
        plain, everybody = speed, np.arange(len(tokens))
        guessed = drafted = [0] * len(tokens)
        for _ in range(SEARCHES):
            worth = tokens - speed * self._costs
            by_drafted = worth.max(1)
            gains = np.maximum.accumulate(by_drafted, 1).sum(0) - speed * self.steps
            most_first = by_drafted[:, : gains.argmax() + 1].argmax(1)
            guessed, drafted = worth[everybody, :, most_first].argmax(1).tolist(), most_first.tolist()
            found = total(tokens, guessed, drafted) / self.seconds(guessed, drafted)
            if found <= speed * 1.001:
                break
            speed = found
        if speed == plain:
            guessed = drafted = [0] * len(tokens)
        return Best(guessed, drafted, speed, self._costs)

    def seconds(self, guessed: Sequence[int], drafted: Sequence[int]) -> float:
        rows = sum(map(self._costs.item, guessed, drafted))
        return self._plain + self.steps.item(max(drafted)) + rows


class PaddedTime:
    """Where of each row as much is computed as of the one that proposes most: to fill the others up is free."""

    def __init__(self, verifying: np.ndarray, drafting: np.ndarray, longest: int) -> None:
        """See `RaggedTime`."""
        self.steps = drafting
        self._verifying = verifying
        self._lengths = _lengths(longest, drafting, verifying)

    def best(self, tokens: np.ndarray, speed: float) -> Best:
        rows, longest, most = tokens.shape
        drafts, length = np.arange(most), int(self._lengths.max())
        guesses = np.arange(length + 1)[:, None] - drafts
        of_length = tokens[:, guesses.clip(0, longest - 1), drafts]
        of_length[:, (guesses < 0) | (guesses >= longest)] = -np.inf
        yields = np.maximum.accumulate(np.maximum.accumulate(of_length, 1), 2).sum(0)
        speeds = yields / (self._verifying[: length + 1, None] + self.steps)
        length, steps = divmod(int(speeds.argmax()), most)
        verifying = self._verifying[self._lengths]
        if speeds[length, steps] <= speed:
            return Best([0] * rows, [0] * rows, speed, verifying - self._verifying[0])
        allowed = np.where(self._lengths[:, : steps + 1] <= length, tokens[:, :, : steps + 1], -np.inf)
        guessed, drafted = np.divmod(allowed.reshape(rows, -1).argmax(1), steps + 1)
        longer = (verifying - self._verifying[length]).clip(0)
        return Best(guessed.tolist(), drafted.tolist(), float(speeds[length, steps]), longer)

    def seconds(self, guessed: Sequence[int], drafted: Sequence[int]) -> float:
        length = max(map(self._lengths.item, guessed, drafted))
        return self._verifying.item(length) + self.steps.item(max(drafted))


RoundTime = RaggedTime | PaddedTime


def total(of_rows: np.ndarray, guessed: Sequence[int], drafted: Sequence[int]) -> float:
    """Of what is said of each row [B, M+1, K+1]."""
    return sum(map(of_rows.item, range(len(guessed)), guessed, drafted))


def _lengths(longest: int, drafting: np.ndarray, verifying: np.ndarray) -> np.ndarray:
    """Tokens [M+1, K+1] of proposals."""
    return np.minimum(np.add.outer(np.arange(longest + 1), np.arange(len(drafting))), len(verifying) - 1)
