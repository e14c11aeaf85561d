"""Rounds teach what they cost: k is chosen by the costs there are, not by those measured at the start."""

from collections.abc import Callable

import numpy as np
import pytest

from hotdraft.serving.decoding.choice import ProposalChoice
from hotdraft.serving.decoding.costs import RoundCosts
from hotdraft.serving.decoding.learned_costs import LearnedCosts, RoundSetting
from hotdraft.serving.decoding.outlook import Outlook
from hotdraft.serving.decoding.rounds import RoundSeconds

MAX_K = 4
GREEDY, FILTERED = (False,), (True,)
STEP = 0.08
MEASURED = RoundCosts({rows: [1 + 0.03 * k for k in range(MAX_K + 1)] for rows in (1, 8)}, {1: STEP, 8: STEP})

Truth = Callable[[RoundSetting, int], float]
"""Seconds of a round."""


def outlook(acceptance: float) -> Outlook:
    return Outlook(np.empty(0), np.full(MAX_K, acceptance), 99)


def measured(setting: RoundSetting, k: int) -> float:
    return MEASURED.round_seconds(setting.rows, k)


def dear(setting: RoundSetting, k: int) -> float:
    """As if each token of a filtered row had its vocabulary sorted."""
    return measured(setting, k) + (0.6 * (k + 1) if setting.kind == FILTERED else 0.0)


def spent(truth: Truth, setting: RoundSetting, k: int) -> RoundSeconds:
    """All but the drafting that was measured is verifying."""
    return RoundSeconds(k * STEP, truth(setting, k) - k * STEP)


def serve(
    adaptive: ProposalChoice,
    truth: Truth,
    setting: RoundSetting,
    acceptance: float,
    rounds: int,
    noise: float = 0.0,
    *,
    apart: bool = True,
) -> list[int]:
    """Each round's k. With `noise` seconds vary by that much, and one round in fifty pauses."""
    random, ks = np.random.default_rng(5), []
    for _ in range(rounds):
        chosen = adaptive.choose([outlook(acceptance)] * setting.rows, setting).drafted
        assert len(set(chosen)) == 1, "rows that are alike draft alike"
        k, pause = chosen[0], 8.0 if noise and random.random() < 0.02 else 0.0
        proposing, verifying = (
            part * float(np.exp(noise * random.normal())) for part in spent(truth, setting, k)[:2]
        )
        seconds = RoundSeconds(proposing, verifying + pause)
        adaptive.observe(setting, chosen, chosen, seconds if apart else RoundSeconds(None, seconds.total))
        ks.append(k)
    return ks


def expected_tokens(acceptance: float) -> list[float]:
    return [sum(acceptance**i for i in range(k + 1)) for k in range(MAX_K + 1)]


def best_k(truth: Truth, setting: RoundSetting, acceptance: float) -> int:
    tokens = expected_tokens(acceptance)
    return int(np.argmax([tokens[k] / truth(setting, k) for k in range(MAX_K + 1)]))


def efficiency(truth: Truth, setting: RoundSetting, acceptance: float, ks: list[int]) -> float:
    """Tokens a second over those of the best fixed k."""
    tokens, best = expected_tokens(acceptance), best_k(truth, setting, acceptance)
    speed = sum(tokens[k] for k in ks) / sum(truth(setting, k) for k in ks)
    return float(speed / (tokens[best] / truth(setting, best)))


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_drafting_ends_where_it_costs_more_than_was_measured(noise: float) -> None:
    filtered, greedy = RoundSetting(8, 200, FILTERED), RoundSetting(8, 200, GREEDY)
    adaptive = ProposalChoice(MEASURED, MAX_K)
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
    adaptive = ProposalChoice(MEASURED, MAX_K)
    ks: dict[RoundSetting, list[int]] = {filtered: [], greedy: []}
    for turn in range(1200):
        setting = filtered if turn % 2 else greedy
        ks[setting] += serve(adaptive, dear, setting, 0.35, 1)
    for setting, chosen in ks.items():
        assert efficiency(dear, setting, 0.35, chosen[200:]) > 0.96


def test_a_long_context_is_another_setting() -> None:
    def truth(setting: RoundSetting, k: int) -> float:
        return measured(setting, k) * (1 + k * setting.context / 4000)

    adaptive = ProposalChoice(MEASURED, MAX_K)
    for context in (100, 4000, 100):
        setting = RoundSetting(4, context, GREEDY)
        ks = serve(adaptive, truth, setting, 0.6, 600)[100:]
        assert efficiency(truth, setting, 0.6, ks) > 0.96


def test_a_machine_that_slows_down_changes_no_choice() -> None:
    setting, adaptive = RoundSetting(8, 200, GREEDY), ProposalChoice(MEASURED, MAX_K)
    before = serve(adaptive, measured, setting, 0.6, 1000)[500:]
    after = serve(adaptive, lambda s, k: 2.5 * measured(s, k), setting, 0.6, 1000)
    best = best_k(measured, setting, 0.6)
    for ks in (before, after[:100], after):
        assert np.mean([abs(k - best) <= 1 for k in ks]) > 0.9


def test_what_a_device_cannot_tell_apart_is_split_as_was_measured() -> None:
    setting, adaptive = RoundSetting(8, 200, GREEDY), ProposalChoice(MEASURED, MAX_K)
    ks = serve(adaptive, lambda s, k: 2.5 * measured(s, k), setting, 0.6, 600, apart=False)
    assert efficiency(measured, setting, 0.6, ks[100:]) > 0.96


def test_costs_that_are_as_measured_are_left_alone() -> None:
    costs = LearnedCosts(MEASURED, MAX_K)
    for setting in (RoundSetting(1), RoundSetting(8, 300, FILTERED)):
        for k in range(MAX_K + 1):
            costs.observe(setting, k, [k] * setting.rows, spent(measured, setting, k))
        assert costs.expected(setting).verifying == pytest.approx(MEASURED.verify_seconds(setting.rows))
        assert costs.expected(setting).drafting.tolist() == pytest.approx([STEP * k for k in range(MAX_K + 1)])


def test_a_step_of_few_rows_says_what_one_of_all_costs() -> None:
    by_rows = RoundCosts({1: [1.0, 1.1], 8: [2.0, 2.4]}, {1: 0.1, 8: 0.8})
    costs, setting = LearnedCosts(by_rows, 1), RoundSetting(8)
    for _ in range(50):  # drafting takes twice as long as was measured, here of one row of eight
        costs.observe(setting, 1 / 8, [1, *[0] * 7], RoundSeconds(0.2, 2.05))
    assert costs.expected(setting).drafting[1] == pytest.approx(1.6, rel=0.02)


def test_one_pause_teaches_little() -> None:
    setting, costs = RoundSetting(8, 200, GREEDY), LearnedCosts(MEASURED, MAX_K)
    for _ in range(50):
        costs.observe(setting, 2, [2] * 8, spent(measured, setting, 2))
    before = costs.expected(setting).verifying
    costs.observe(setting, 2, [2] * 8, RoundSeconds(0.16, 1000.0))
    assert (costs.expected(setting).verifying < 1.1 * before).all()


def test_what_the_draft_had_missed_is_no_cost_of_drafting() -> None:
    costs, setting = LearnedCosts(MEASURED, MAX_K), RoundSetting(8)
    for _ in range(20):
        costs.observe(setting, 1, [1] * 8, RoundSeconds(0.9, 1.03, caught_up=True))
    assert costs.expected(setting).drafting.tolist() == pytest.approx([STEP * k for k in range(MAX_K + 1)])


@pytest.mark.parametrize("rows", [1, 8])
def test_a_draft_that_has_to_catch_up_is_tried_the_less_the_more_it_missed(rows: int) -> None:
    adaptive, setting = ProposalChoice(MEASURED, MAX_K), RoundSetting(rows)
    missed = trials = 0
    for _ in range(400):
        drafted = adaptive.choose([outlook(0.0)] * rows, setting).drafted
        proposing, verifying, _ = spent(measured, setting, max(drafted))
        read = 0.2 * missed if any(drafted) else 0.0
        adaptive.observe(setting, drafted, drafted, RoundSeconds(proposing + read, verifying, read > 0))
        trials += any(drafted)
        missed = 0 if any(drafted) else missed + 1
    assert 0 < trials < 10


def test_of_many_rows_no_length_is_cheap_for_being_untried() -> None:
    costs = RoundCosts({rows: [1 + 0.14 * tokens for tokens in range(9)] for rows in (1, 8)}, {1: 0.1, 8: 0.1})
    adaptive, setting = ProposalChoice(costs, MAX_K), RoundSetting(8)
    for total in (0, 8) * 300:  # what all of them read was one token a row, or none
        adaptive.observe(setting, [total, *[0] * 7], [0] * 8, RoundSeconds(0.0, 1 + 0.14 * total / 8))
    guessing = Outlook(np.full(8, 0.3), np.empty(0), 20)
    assert adaptive.choose([guessing] * 8, setting).guessed == [1] * 8  # 1.3 / 1.14 is more than 1.39 / 1.28
