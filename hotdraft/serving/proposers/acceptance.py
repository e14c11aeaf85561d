"""How likely proposed tokens are to be accepted, learnt from those that were judged."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hotdraft.pipeline.store.domains import DomainNames

MEMORY = 0.97
"""Weight of the past, by judged token."""
PRIOR_WEIGHT = 8.0
"""Judged tokens that what others taught counts for."""
OPTIMISM = 0.6
"""Acceptance of a drafted token assumed before anything is known."""


class AcceptanceEstimate:
    """Acceptance by kind of token, such as its position in a draft; recent tokens count most.

    One may begin as another, which learns what it learns.
    """

    def __init__(self, assumed: "np.ndarray | AcceptanceEstimate", memory: float = MEMORY) -> None:
        """`assumed` [kinds] before anything is known, or what others taught."""
        self._assumed = assumed
        kinds = len(self._prior())
        self._accepted = np.zeros(kinds)
        self._judged = np.zeros(kinds)
        self._memory = memory
        self._learnt = 0
        self._rates: tuple[int, np.ndarray] | None = None
        """At which state they were computed."""

    @property
    def state(self) -> int:
        """Another one once there is anything new, here or in what others taught."""
        return self._learnt + (self._assumed.state if isinstance(self._assumed, AcceptanceEstimate) else 0)

    def rates(self) -> np.ndarray:
        """The chance [kinds] of a token whose predecessors were accepted; not to be changed."""
        state = self.state
        if self._rates is None or self._rates[0] != state:
            accepted = self._accepted + PRIOR_WEIGHT * self._prior()
            self._rates = state, accepted / (self._judged + PRIOR_WEIGHT)
        return self._rates[1]

    def observe(self, kinds: Sequence[int], num_accepted: int) -> None:
        """Take in judged tokens: the first `num_accepted` were accepted, one after them was not."""
        judged = kinds[: num_accepted + 1]
        self._learn(judged, [index < num_accepted for index in range(len(judged))])

    def observe_choice(self, kinds: Sequence[int], which: int) -> None:
        """Take in tokens of which at most one could be accepted: it was `which`, or none if that is negative."""
        self._learn(kinds, [index == which for index in range(len(kinds))])

    def _learn(self, kinds: Sequence[int], accepted: Sequence[bool]) -> None:
        self._learnt += 1
        for kind, one in zip(kinds, accepted, strict=True):
            self._judged[kind] = self._memory * self._judged[kind] + 1
            self._accepted[kind] = self._memory * self._accepted[kind] + one
        if isinstance(self._assumed, AcceptanceEstimate):
            self._assumed._learn(kinds, accepted)

    def _prior(self) -> np.ndarray:
        return self._assumed.rates() if isinstance(self._assumed, AcceptanceEstimate) else self._assumed


class Estimates(NamedTuple):
    """What is learnt of a request's proposals."""

    drafted: AcceptanceEstimate
    """By position in the draft model's proposals."""
    guessed: AcceptanceEstimate | None = None
    """By kind of guess; None where nothing is guessed."""
    alternatives: AcceptanceEstimate | None = None
    """By rank of the draft model's second choices; None where there are none."""


class TrafficEstimate:
    """Of all traffic and of each domain. A request begins as others of its domain do, and these as all traffic."""

    def __init__(self, assumed: np.ndarray, memory: float = MEMORY) -> None:
        self._of_all = AcceptanceEstimate(assumed, memory)
        self._of_domains: dict[str, AcceptanceEstimate] = {}
        self._names = DomainNames(self._of_domains.pop)
        self._memory = memory

    def of_request(self, domain: str) -> AcceptanceEstimate:
        """Of one that has yet to begin."""
        name = self._names.name(domain)
        of_domain = self._of_domains.setdefault(name, AcceptanceEstimate(self._of_all, self._memory))
        return AcceptanceEstimate(of_domain, self._memory)


def by_position(max_k: int) -> np.ndarray:
    """What is assumed of the acceptance of a draft, whose kinds of tokens are its positions."""
    return np.full(max_k, OPTIMISM)


def of_alternatives(most: int) -> np.ndarray:
    """What is assumed of second choices, likeliest first: as on arithmetic and text-to-SQL of SmolLM2."""
    return 0.13 * 0.6 ** np.arange(most)
