"""Rounds teach what they cost: k is chosen by the costs there are, not by those measured at the start."""

from collections.abc import Callable

import numpy as np
import pytest

from hotdraft.serving.decoding.adaptive_k import AcceptanceEstimate, AdaptiveK
from hotdraft.serving.decoding.costs import RoundCosts
from hotdraft.serving.decoding.learned_costs import LearnedCosts, RoundSetting

MAX_K = 4
GREEDY, FILTERED = (False,), (True,)
MEASURED = RoundCosts({rows: [1 + 0.11 * k for k in range(MAX_K + 1)] for rows in (1, 8)}, {1: 0.08, 8: 0.08})

Truth = Callable[[RoundSetting, int], float]
"""Seconds of a round."""


class Known(AcceptanceEstimate):
    def __init__(self, acceptance: float) -> None:
        super().__init__(MAX_K)
        self._rate = acceptance

    def rates(self) -> np.ndarray:
        return np.full(MAX_K, self._rate)


def measured(setting: RoundSetting, k: int) -> float:
    return MEASURED.round_seconds(setting.rows, k)


def dear(setting: RoundSetting, k: int) -> float:
    """As if each token of a filtered row had its vocabulary sorted."""
    return measured(setting, k) + (0.6 * (k + 1) if setting.kind == FILTERED else 0.0)


def serve(
    adaptive: AdaptiveK, truth: Truth, setting: RoundSetting, acceptance: float, rounds: int, noise: float = 0.0
) -> list[int]:
    """Each round's k. With `noise` seconds vary by that much, and one round in fifty pauses."""
    random, known, ks = np.random.default_rng(5), Known(acceptance), []
    for _ in range(rounds):
        k = adaptive.choose([known] * setting.rows, 100, setting)
        pause = 8.0 if noise and random.random() < 0.02 else 0.0
        adaptive.observe(setting, k, truth(setting, k) * float(np.exp(noise * random.normal())) + pause)
        ks.append(k)
    return ks


def best_k(truth: Truth, setting: RoundSetting, acceptance: float) -> int:
    tokens = Known(acceptance).expected_tokens()
    return int(np.argmax([tokens[k] / truth(setting, k) for k in range(MAX_K + 1)]))


def efficiency(truth: Truth, setting: RoundSetting, acceptance: float, ks: list[int]) -> float:
    """Tokens a second over those of the best fixed k."""
    tokens, best = Known(acceptance).expected_tokens(), best_k(truth, setting, acceptance)
    speed = sum(tokens[k] for k in ks) / sum(truth(setting, k) for k in ks)
    return float(speed / (tokens[best] / truth(setting, best)))


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_drafting_ends_where_it_costs_more_than_was_measured(noise: float) -> None:
    filtered, greedy = RoundSetting(8, 200, FILTERED), RoundSetting(8, 200, GREEDY)
    adaptive = AdaptiveK(MEASURED)
    assert best_k(measured, filtered, 0.35) > 0 == best_k(dear, filtered, 0.35), "the profile would draft"
    serve(adaptive, dear, filtered, 0.35, 300, noise)
    assert efficiency(dear, filtered, 0.35, serve(adaptive, dear, filtered, 0.35, 1000, noise)) > 0.96
    ks = serve(adaptive, dear, greedy, 0.35, 1000, noise)
    assert efficiency(dear, greedy, 0.35, ks[100:]) > 0.96, "greedy requests draft as before"
    assert efficiency(dear, filtered, 0.35, serve(adaptive, dear, filtered, 0.35, 100, noise)) > 0.96, (
        "not forgotten"
    )


def test_kinds_that_take_turns_keep_their_own_costs() -> None:
    filtered, greedy = RoundSetting(8, 200, FILTERED), RoundSetting(8, 200, GREEDY)
    adaptive = AdaptiveK(MEASURED)
    ks: dict[RoundSetting, list[int]] = {filtered: [], greedy: []}
    for turn in range(1200):
        setting = filtered if turn % 2 else greedy
        ks[setting] += serve(adaptive, dear, setting, 0.35, 1)
    for setting, chosen in ks.items():
        assert efficiency(dear, setting, 0.35, chosen[200:]) > 0.96


def test_a_long_context_is_another_setting() -> None:
    def truth(setting: RoundSetting, k: int) -> float:
        return measured(setting, k) * (1 + k * setting.context / 4000)

    adaptive = AdaptiveK(MEASURED)
    for context in (100, 4000, 100):
        setting = RoundSetting(4, context, GREEDY)
        ks = serve(adaptive, truth, setting, 0.6, 600)[100:]
        assert efficiency(truth, setting, 0.6, ks) > 0.96


def test_a_machine_that_slows_down_changes_no_choice() -> None:
    setting, adaptive = RoundSetting(8, 200, GREEDY), AdaptiveK(MEASURED)
    before = serve(adaptive, measured, setting, 0.6, 1000)[500:]
    after = serve(adaptive, lambda s, k: 2.5 * measured(s, k), setting, 0.6, 1000)
    best = best_k(measured, setting, 0.6)
    for ks in (before, after[:100], after):
        assert np.mean([abs(k - best) <= 1 for k in ks]) > 0.9


def test_costs_that_are_as_measured_are_left_alone() -> None:
    costs = LearnedCosts(MEASURED)
    for setting in (RoundSetting(1), RoundSetting(8, 300, FILTERED)):
        for k in range(MAX_K + 1):
            costs.observe(setting, k, measured(setting, k))
        assert costs.seconds(setting).tolist() == pytest.approx([measured(setting, k) for k in range(MAX_K + 1)])


def test_one_pause_teaches_little() -> None:
    setting, costs = RoundSetting(8, 200, GREEDY), LearnedCosts(MEASURED)
    for _ in range(50):
        costs.observe(setting, 2, measured(setting, 2))
    before = costs.seconds(setting)
    costs.observe(setting, 2, 1000.0)
    assert (costs.seconds(setting) < 1.1 * before).all()
