"""k of the next round: a number that somebody set, or what is fastest by all that was learnt."""

from collections.abc import Sequence
from typing import Literal

from hotdraft.serving.decoding.adaptive_k import AcceptanceEstimate, AdaptiveK
from hotdraft.serving.decoding.costs import RoundCosts, profile_costs, rows_to_measure
from hotdraft.serving.decoding.decoder import SpeculativeDecoder
from hotdraft.serving.decoding.learned_costs import RoundSetting


class KChoice:
    """Also 0 as long as the proposer is far behind: it reads some `chunk` tokens of each request a round."""

    def __init__(self, decoder: SpeculativeDecoder, k: int | Literal["auto"], chunk: int) -> None:
        self.adaptive: AdaptiveK | None = None
        """Who chooses; None as long as the costs of rounds are unknown."""
        self._decoder = decoder
        self._k = k if decoder.proposer is not None else 0
        self._chunk = chunk
        self._due = 0
        """What auto has chosen, while the proposer has yet to read what it missed."""
        self._acceptance = AcceptanceEstimate(decoder.max_k)

    @property
    def k(self) -> int | Literal["auto"]:
        return self._k

    @k.setter
    def k(self, k: int | Literal["auto"]) -> None:
        if k == "auto" and self.adaptive is None:
            raise ValueError("k can be 'auto' only once the costs of rounds were measured, see `measure_costs`")
        if k != "auto" and not 0 <= k <= self._decoder.max_k:
            raise ValueError(f"k must be 'auto' or between 0 and {self._decoder.max_k}, not {k}")
        self._k = k

    def measure_costs(self) -> RoundCosts:
        """Learn what rounds cost on this machine, by rows and k; only while no request runs. Takes seconds."""
        costs = profile_costs(self._decoder, rows_to_measure(self._decoder.slots.num_slots), self._decoder.max_k)
        self.adaptive = AdaptiveK(costs)
        return costs

    def new_estimate(self) -> AcceptanceEstimate:
        """For a request that has yet to begin."""
        return AcceptanceEstimate(self._decoder.max_k, prior=self._acceptance)

    def choose(self, estimates: Sequence[AcceptanceEstimate], longest: int, setting: RoundSetting) -> int:
        """For a round over requests with these `estimates`, the longest with `longest` tokens to go."""
        k = self.k
        if k == "auto":
            assert self.adaptive is not None
            k = self._due or self.adaptive.choose(estimates, longest, setting)
        if k == 0 or self._decoder.catch_up(len(estimates), self._chunk):
            self._due = 0
            return k
        self._due = k
        return 0

    def plain_round_seconds(self, setting: RoundSetting) -> float | None:
        """Of a round that drafts nothing, by all that was learnt; None as long as nothing was measured."""
        return None if self.adaptive is None else self.adaptive.round_seconds(setting, 0)

    def observe(self, setting: RoundSetting, k: int, seconds: float) -> None:
        """A round of k drafted tokens took `seconds`."""
        if self.adaptive is not None:
            self.adaptive.observe(setting, k, seconds)
