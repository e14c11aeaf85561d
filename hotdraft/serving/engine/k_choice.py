"""What the next round proposes: k drafted tokens as somebody set, or what is fastest by all that was learnt."""

from collections.abc import Sequence
from typing import Literal

from hotdraft.serving.decoding.choice import ProposalChoice
from hotdraft.serving.decoding.costs import RoundCosts, profile_costs, rows_to_measure
from hotdraft.serving.decoding.decoder import SpeculativeDecoder
from hotdraft.serving.decoding.guessing import Guessing
from hotdraft.serving.decoding.learned_costs import RoundSetting
from hotdraft.serving.decoding.outlook import Outlook
from hotdraft.serving.decoding.prompt_reading import PromptReading
from hotdraft.serving.decoding.rounds import Round
from hotdraft.serving.proposers.acceptance import Estimates, TrafficEstimate, by_position, of_alternatives
from hotdraft.serving.proposers.plan import ProposalPlan

REST = 3
"""Rounds for which nothing is looked for where nothing paid and no text guesses: to choose takes time too."""


class KChoice:
    """Nothing is drafted for a request while the proposer is far behind: it reads some `chunk` tokens a round."""

    def __init__(
        self, decoder: SpeculativeDecoder, k: int | Literal["auto"], chunk: int, guessing: Guessing | None = None
    ) -> None:
        self.adaptive: ProposalChoice | None = None
        """Who chooses; None as long as the costs of rounds are unknown."""
        self.guessing = guessing
        self._decoder = decoder
        self._k = k if decoder.proposer is not None or (guessing is not None and k == "auto") else 0
        self._chunk = chunk
        self._acceptance = TrafficEstimate(by_position(decoder.max_k))
        self._of_alternatives = TrafficEstimate(of_alternatives(decoder.max_alternatives))
        self._reading = PromptReading()
        self._resting = 0

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

    def is_drafted_alone(self, *, recorded: bool) -> bool:
        """Whether the next request is to show what the draft is worth, which is learnt and judged from."""
        if self._k != "auto" or self.adaptive is None or self._decoder.proposer is None:
            return False
        return recorded and self.adaptive.can_draft_alone

    def is_drafted(self, at_once: int) -> bool:
        """Whether the next request, one of so many, is to be drafted for as long as k is auto."""
        if self._decoder.proposer is None:
            return False
        return self._k != "auto" or self._reading.pays(at_once)

    def measure_costs(self) -> RoundCosts:
        """Learn what rounds cost on this machine, by rows and tokens; only while no request runs. Takes seconds."""
        max_k = self._decoder.max_k
        proposed = max(max_k, self.guessing.max_guess if self.guessing is not None else 0)
        most = max(proposed, max_k + self._decoder.max_alternatives)
        costs = profile_costs(self._decoder, rows_to_measure(self._decoder.slots.num_slots), most)
        padded = self._decoder.target.runner.computation.runner != "native"
        self.adaptive = ProposalChoice(costs, max_k, proposed, padded=padded)
        return costs

    def new_estimates(self, domain: str) -> Estimates:
        """For a request that begins."""
        return Estimates(
            self._acceptance.of_request(domain),
            None if self.guessing is None else self.guessing.new_estimate(domain),
            self._of_alternatives.of_request(domain),
        )

    def choose(
        self, outlooks: Sequence[Outlook], guesses: Sequence[Sequence[int]], setting: RoundSetting
    ) -> ProposalPlan:
        """With k "auto", for a round over requests of these `outlooks`; of their `guesses` as many as pay."""
        assert self.adaptive is not None
        if self._resting and not any(map(len, guesses)) and not any(row.draft_alone for row in outlooks):
            self._resting -= 1
            self.adaptive.rested(setting)
            return ProposalPlan.uniform(len(outlooks), 0)
        guessed, drafted, floors, alternatives, saved = self.adaptive.choose(outlooks, setting)
        self._resting = 0 if any(guessed) or any(drafted) else REST
        kept = [guess[:count] for guess, count in zip(guesses, guessed, strict=True)]
        proposer = self._decoder.proposer
        if floors is not None and proposer is not None and proposer.stops_early and not any(setting.kind):
            most, longest = self._decoder.max_k, self.adaptive.most_proposed
            room = [min(row.most, longest) - len(guess) for row, guess in zip(outlooks, kept, strict=True)]
            drafted = [min(most, left) if count else 0 for left, count in zip(room, drafted, strict=True)]
        if alternatives is not None:
            left = [
                self.adaptive.costs.most - len(guess) - count for guess, count in zip(kept, drafted, strict=True)
            ]
            alternatives = [min(room, count) for room, count in zip(left, alternatives, strict=True)]
        return self.caught_up(ProposalPlan(kept, drafted, floors, alternatives, saved))

    def plain_round_seconds(self, setting: RoundSetting) -> float | None:
        """Of a round that proposes nothing, by all that was learnt; None as long as nothing was measured."""
        return None if self.adaptive is None else self.adaptive.plain_seconds(setting)

    def observe(self, setting: RoundSetting, outcome: Round, is_drafted: Sequence[bool] = ()) -> None:
        """What a round took, and for which of its rows the draft model is asked."""
        if self.adaptive is not None:
            if self._k == "auto" and len(set(is_drafted)) == 1:
                plain = self.adaptive.plain_seconds(setting) * sum(outcome.num_new.tolist()) / setting.rows
                self._reading.observe(plain, outcome.seconds.total, drafted=is_drafted[0])
            drafted = (outcome.num_proposed - outcome.num_guessed).tolist()
            num_read = (outcome.num_proposed + outcome.num_alternatives).tolist()
            self.adaptive.observe(setting, num_read, drafted, outcome.seconds)

    def ended(self, saved: float, reading: float, at_once: int) -> None:
        """A request, one of so many, that the draft was to propose for; see `PromptReading.ended`."""
        if self._k == "auto":  # else nobody has said what it saves
            self._reading.ended(saved, reading, at_once)

    def caught_up(self, plan: ProposalPlan) -> ProposalPlan:
        """The same without drafts for rows that the proposer is far behind in, of which it reads some."""
        drafting = [row for row, count in enumerate(plan.drafted) if count]
        behind = self._decoder.catch_up(drafting, self._chunk) if drafting else []
        return plan.without_drafts(set(behind)) if behind else plan
