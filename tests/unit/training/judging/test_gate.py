import numpy as np
import pytest
from scipy import stats

from hotdraft.pipeline.config.learning import GateConfig
from hotdraft.training.judging.gate import guards_of, judge, refused

CONFIG = GateConfig(min_requests=4, max_domain_loss=0.05)
NOISE = np.random.default_rng(0).normal(0, 0.1, 40)
CHAMPION = 0.4 + NOISE


def test_a_better_candidate_passes_with_its_numbers():
    verdict = judge(CHAMPION, CHAMPION + 0.05 + NOISE[::-1] * 0.2, ["a"] * 40, CONFIG)
    assert verdict.accepted
    assert 0 < verdict.gain_low < verdict.gain < verdict.gain_high
    assert verdict.gain == pytest.approx(0.05, abs=0.02)
    assert verdict.loss_high == pytest.approx(-verdict.gain_low), "of one domain, whose best is the champion"
    assert "would hide" not in verdict.reason


def test_the_interval_is_students_as_if_five_requests_more_had_the_usual_spread():
    few, many = 0.1 + 2 * NOISE[:6], 0.05 + NOISE[:20]
    variances = [  # answers of 12 tokens are twice as coarse as usual ones, those of 48 no less coarse
        (5 * 0.13**2 * coarse + ((gains - gains.mean()) ** 2).sum()) / (len(gains) + 4) / len(gains)
        for gains, coarse in ((few, 2), (many, 1))
    ]
    verdict = judge(np.zeros(6), few, ["new"] * 6, CONFIG, tokens=[12] * 6)
    expected = stats.t(10, few.mean(), variances[0] ** 0.5).interval(CONFIG.confidence)
    assert (verdict.gain_low, verdict.gain_high) == pytest.approx(expected)

    parts = 0.7**2 * variances[0], 0.3**2 * variances[1]
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / 10 + parts[1] ** 2 / 24)
    of_both = stats.t(freedom, 0.7 * few.mean() + 0.3 * many.mean(), sum(parts) ** 0.5)
    domains, mix = ["new"] * 6 + ["old"] * 20, {"new": 0.7, "old": 0.3}
    scores, tokens = np.concatenate([few, many]), [12] * 6 + [48] * 20
    verdict = judge(np.zeros(26), scores, domains, CONFIG, mix, tokens=tokens, offered=2)
    assert (verdict.gain_low, verdict.gain_high) == pytest.approx(of_both.interval((1 + CONFIG.confidence) / 2))


def test_pairing_sees_a_small_gain_under_large_differences_between_requests():
    spread = np.linspace(0, 1, 40)
    assert judge(spread, spread + 0.03, ["a"] * 40, CONFIG).accepted


@pytest.mark.parametrize("change", [0.0, -0.05, NOISE - NOISE.mean()])
def test_an_equal_or_worse_candidate_is_refused(change):
    verdict = judge(CHAMPION, CHAMPION + change, ["a"] * 40, CONFIG)
    assert not verdict.accepted
    assert ("loses 0.050 on a against its best" if verdict.gain < -0.01 else "is not above") in verdict.reason


def test_a_gain_within_the_stated_minimum_is_refused():
    assert not judge(CHAMPION, CHAMPION + 0.02, ["a"] * 40, GateConfig(min_gain=0.03)).accepted


def test_scores_that_are_not_finite_are_refused():
    scores = CHAMPION + 1.0
    scores[3] = np.nan
    verdict = judge(CHAMPION, scores, ["a"] * 40, CONFIG)
    assert not verdict.accepted
    assert "finite" in verdict.reason


def test_a_gain_on_the_new_domain_does_not_buy_a_loss_on_the_old_one():
    change = np.where(np.arange(40) < 10, -0.1, 0.4)
    domains = ["old"] * 10 + ["new"] * 30
    verdict = judge(CHAMPION, CHAMPION + change, domains, CONFIG)
    assert verdict.gain_low > 0
    assert not verdict.accepted
    assert "old" in verdict.reason
    assert verdict.by_domain == pytest.approx({"old": -0.1, "new": 0.4})


def test_prompts_that_are_worth_too_little_are_not_rounded_up_to_enough():
    domains, mix = ["sql"] * 4 + ["chat"] + ["old"] * 6, {"sql": 0.7, "chat": 0.3}
    gain = np.full(11, 0.2)
    assert judge(CHAMPION[:11], CHAMPION[:11] + gain, domains, GateConfig(), mix).reason == (
        "worth 4.7 unseen prompts of today's traffic, at least 5 are needed"
    )


@pytest.mark.parametrize(("loss", "accepted"), [(0.06, True), (0.16, False)])
def test_a_loss_beyond_the_margin_must_be_beyond_chance(loss, accepted):
    spread = np.tile([-0.12, 0.12], 5)  # a standard error of 0.04
    change = np.concatenate([spread - loss, np.full(30, 0.4)])
    verdict = judge(CHAMPION, CHAMPION + change, ["old"] * 10 + ["new"] * 30, CONFIG)
    assert verdict.accepted is accepted


def test_todays_mix_weighs_the_gain_and_what_nobody_asked_for_yet_gains_nothing():
    change = np.where(np.arange(40) < 8, 0.2, -0.01) + 0.05 * NOISE
    domains = ["new"] * 8 + ["old"] * 32
    of_all = judge(CHAMPION, CHAMPION + change, domains, CONFIG)
    assert of_all.gain == pytest.approx(0.032, abs=0.005)
    today = judge(CHAMPION, CHAMPION + change, domains, CONFIG, {"new": 0.75, "unseen": 0.25})
    assert today.accepted
    assert today.gain == pytest.approx(0.15, abs=0.01)
    assert today.gain_low < today.gain < today.gain_high


@pytest.mark.parametrize("prompts", [0, 1, 4])
def test_few_prompts_of_todays_traffic_are_no_evidence_however_great_the_gain(prompts):
    change = np.where(np.arange(40) < prompts, 0.5, 0.0)
    domains = ["new"] * prompts + ["old"] * (40 - prompts)
    verdict = judge(CHAMPION, CHAMPION + change, domains, CONFIG, {"new": 0.95, "old": 0.05})
    assert not verdict.accepted
    assert "unseen prompts of today's traffic, at least 5 are needed" in verdict.reason
    nothing = judge(CHAMPION, CHAMPION + change, ["old"] * 40, CONFIG, {"new": 1.0})
    assert nothing.reason == "no unseen prompt of today's traffic"


def test_five_prompts_that_happen_to_agree_are_not_taken_for_certainty():
    few = judge(CHAMPION[:5], CHAMPION[:5] + 0.05, ["a"] * 5, CONFIG)
    assert not few.accepted, "their own spread is 0, the one that is usual is not"
    assert judge(CHAMPION[:5], CHAMPION[:5] + 0.3, ["a"] * 5, CONFIG).accepted


def test_each_of_the_candidates_offered_has_its_part_of_the_chance_to_err():
    scores = CHAMPION + 0.02 + 0.2 * NOISE
    alone, of_four = (judge(CHAMPION, scores, ["a"] * 40, CONFIG, offered=offered) for offered in (1, 4))
    assert of_four.gain == alone.gain
    assert of_four.gain_low < alone.gain_low


def test_a_few_prompts_do_not_veto_a_loss_that_may_be_chance_but_do_veto_a_great_one():
    domains = ["old"] * 3 + ["new"] * 37
    for loss, accepted in ((0.08, True), (0.3, False)):
        change = np.where(np.arange(40) < 3, -loss, 0.4)
        verdict = judge(CHAMPION, CHAMPION + change, domains, CONFIG, {"new": 1.0})
        assert verdict.accepted is accepted
        assert ("would hide a loss of up to" in verdict.reason) is accepted


def test_many_small_domains_that_all_lose_are_seen_together():
    domains = [f"old{index}" for index in range(32)] * 2 + ["new"] * 40
    spread = np.random.default_rng(1).normal(0, 0.1, 104)
    change = np.where(np.arange(104) < 64, -0.1, 0.3) + spread
    verdict = judge(np.full(104, 0.5), 0.5 + change, domains, CONFIG, {"new": 1.0})
    assert not verdict.accepted
    assert "on 32 older domains against its best" in verdict.reason


def test_a_loss_is_against_the_best_a_domain_ever_had_and_not_against_the_champion_alone():
    domains = ["old"] * 20 + ["new"] * 20
    old = np.arange(40) < 20
    champion = CHAMPION - np.where(old, 0.04, 0.0)
    candidate = CHAMPION + np.where(old, -0.055, 0.3)
    assert judge(champion, candidate, domains, CONFIG, {"new": 1.0}).accepted, "it loses 0.015"
    verdict = judge(champion, candidate, domains, CONFIG, {"new": 1.0}, best_scores=CHAMPION)
    assert not verdict.accepted
    assert "loses 0.055 on old against its best" in verdict.reason
    assert f"and {verdict.loss_high:.3f} for all that is known" in verdict.reason


def test_what_the_champion_has_lost_for_good_does_not_end_learning():
    domains = ["old"] * 20 + ["new"] * 20
    old = np.arange(40) < 20
    champion = CHAMPION - np.where(old, 0.2, 0.0)
    for change, accepted in ((0.01, True), (0.0, True), (-0.01, False)):
        candidate = champion + np.where(old, change, 0.3)
        verdict = judge(champion, candidate, domains, CONFIG, {"new": 1.0}, best_scores=CHAMPION)
        assert verdict.accepted is accepted


def test_a_loss_of_the_champion_that_may_be_chance_excuses_none_that_is_not():
    old, by_chance = np.arange(40) < 20, np.tile([-0.3, 0.3], 20)
    champion = CHAMPION - np.where(old, 0.08 + by_chance, 0.0)
    candidate = CHAMPION + np.where(old, -0.07, 0.3)
    domains = ["old"] * 20 + ["new"] * 20
    assert judge(champion, candidate, domains, CONFIG, {"new": 1.0}, best_scores=CHAMPION).loses


def test_of_what_is_lost_the_worst_is_told():
    change = np.repeat([-0.2, -0.3, 0.4], [10, 10, 20])
    domains = ["bad"] * 10 + ["worse"] * 10 + ["new"] * 20
    assert "loses 0.300 on worse" in judge(CHAMPION, CHAMPION + change, domains, CONFIG, {"new": 1.0}).reason


def test_guards_share_the_false_alarms_and_half_of_them_is_for_all_older_domains_together():
    def alarms(names, mix):
        domains = np.array(list(names))
        guards = guards_of(domains, np.full(len(domains), 24), dict.fromkeys(mix, 1 / len(mix)), 0.05, 0.01)
        return {(guard.name, "".join(domains[guard.rows])): pytest.approx(guard.alarm) for guard in guards}

    assert alarms("aaabbbccdd", "ac") == {
        ("a", "aaa"): 0.05 / 3,
        ("b", "bbb"): 0.05 / 3,
        ("2 small domains", "ccdd"): 0.05 / 3,
        ("2 older domains", "bbbdd"): 0.05,
    }
    assert alarms("aaab", "a") == {("a", "aaa"): 0.05, ("b", "b"): 0.05}
    assert alarms("bbb", "a") == {("b", "bbb"): 0.05}


@pytest.mark.parametrize(
    ("gain", "loss", "accepted", "promising"),
    [
        (0.2, 0.0, True, False),
        (0.03, 0.0, False, True),
        (-0.005, 0.0, False, False),
        (-0.03, 0.0, False, False),
        (0.03, 0.3, False, False),
    ],
)
def test_what_is_refused_for_too_little_evidence_alone_is_promising(gain, loss, accepted, promising):
    noise = np.random.default_rng(0).normal(0, 0.05, 40)
    domains = 20 * ["new"] + 20 * ["old"]
    change = noise - noise.mean() + np.repeat([gain, -loss], 20)
    verdict = judge(np.full(40, 0.5), 0.5 + change, domains, GateConfig(), {"new": 1.0})
    assert (verdict.accepted, verdict.is_promising) == (accepted, promising)
    assert verdict.is_hopeless == (not accepted and not promising)


def test_without_evidence_no_candidate_is_hopeless():
    worse = CHAMPION - 0.1
    few = CONFIG.model_copy(update={"min_requests": 4, "min_prompts": 20, "max_domain_loss": 0.5})
    verdicts = [
        judge(CHAMPION[:3], worse[:3], ["a"] * 3, CONFIG),
        judge(CHAMPION, worse, ["a"] * 40, CONFIG, {"new": 1.0}),
        judge(CHAMPION[:10], worse[:10], ["a"] * 10, few),
        refused("the loss is no number"),
    ]
    assert [verdict.accepted or verdict.is_hopeless for verdict in verdicts] == [False] * 4
    assert judge(CHAMPION, worse, ["a"] * 40, few).is_hopeless


def test_too_few_requests_are_no_ground_for_a_verdict():
    verdict = judge(CHAMPION[:3], CHAMPION[:3] + 0.5, ["a"] * 3, CONFIG)
    assert not verdict.accepted
    assert "3 held-out requests" in verdict.reason
    assert judge(CHAMPION[:4], CHAMPION[:4] + 0.5, ["a"] * 4, CONFIG).gain == pytest.approx(0.5)
