"""How likely proposed tokens are to be accepted, learnt from those that were judged."""

from collections.abc import Sequence

import numpy as np

MEMORY = 0.97
"""Weight of the past, by judged token."""
PRIOR_WEIGHT = 8.0
"""Judged tokens that the acceptance of all traffic counts for in a single request's."""
OPTIMISM = 0.6
"""Acceptance of a drafted token assumed before anything is known."""


class AcceptanceEstimate:
    """Acceptance by kind of token, such as its position in a draft; recent tokens count most.

    A request's begins as that of all traffic, which learns what it learns.
    """

    def __init__(self, assumed: "np.ndarray | AcceptanceEstimate", memory: float = MEMORY) -> None:
        """`assumed` [kinds] before anything is known, or what all traffic taught."""
        self._assumed = assumed
        kinds = len(self._prior())
        self._accepted = np.zeros(kinds)
        self._judged = np.zeros(kinds)
        self._memory = memory

    def rates(self) -> np.ndarray:
        """The chance [kinds] of a token whose predecessors were accepted."""
        return (self._accepted + PRIOR_WEIGHT * self._prior()) / (self._judged + PRIOR_WEIGHT)

    def observe(self, kinds: Sequence[int], num_accepted: int) -> None:
        """Take in judged tokens: the first `num_accepted` were accepted, one after them was not."""
        judged = kinds[: num_accepted + 1]
        self._learn(judged, [index < num_accepted for index in range(len(judged))])

    def observe_choice(self, kinds: Sequence[int], which: int) -> None:
        """Take in tokens of which at most one could be accepted: it was `which`, or none if that is negative."""
        self._learn(kinds, [index == which for index in range(len(kinds))])

    def _learn(self, kinds: Sequence[int], accepted: Sequence[bool]) -> None:
        for kind, one in zip(kinds, accepted, strict=True):
            self._judged[kind] = self._memory * self._judged[kind] + 1
            self._accepted[kind] = self._memory * self._accepted[kind] + one
        if isinstance(self._assumed, AcceptanceEstimate):
            self._assumed._learn(kinds, accepted)

    def _prior(self) -> np.ndarray:
        return self._assumed.rates() if isinstance(self._assumed, AcceptanceEstimate) else self._assumed


def by_position(max_k: int) -> np.ndarray:
    """What is assumed of the acceptance of a draft, whose kinds of tokens are its positions."""
    return np.full(max_k, OPTIMISM)


def of_alternatives(most: int) -> np.ndarray:
    """What is assumed of second choices, likeliest first: as on arithmetic and text-to-SQL of SmolLM2."""
    return 0.13 * 0.6 ** np.arange(most)
