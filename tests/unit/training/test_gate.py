import numpy as np
import pytest

from pipeline.config import GateConfig
from training.gate import judge

CONFIG = GateConfig(min_requests=4, max_domain_loss=0.05)
NOISE = np.random.default_rng(0).normal(0, 0.1, 40)
CHAMPION = 0.4 + NOISE


def test_a_better_candidate_passes_with_its_numbers():
    verdict = judge(CHAMPION, CHAMPION + 0.05 + NOISE[::-1] * 0.2, ["a"] * 40, CONFIG)
    assert verdict.accepted
    assert 0 < verdict.gain_low < verdict.gain < verdict.gain_high
    assert verdict.gain == pytest.approx(0.05, abs=0.02)


def test_pairing_sees_a_small_gain_under_large_differences_between_requests():
    spread = np.linspace(0, 1, 40)
    assert judge(spread, spread + 0.01, ["a"] * 40, CONFIG).accepted


@pytest.mark.parametrize("change", [0.0, -0.05, NOISE - NOISE.mean()])
def test_an_equal_or_worse_candidate_is_refused(change):
    verdict = judge(CHAMPION, CHAMPION + change, ["a"] * 40, CONFIG)
    assert not verdict.accepted
    assert "is not above" in verdict.reason


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


@pytest.mark.parametrize(("loss", "accepted"), [(0.06, True), (0.12, False)])
def test_a_loss_beyond_the_margin_must_be_beyond_chance(loss, accepted):
    spread = np.tile([-0.12, 0.12], 5)  # a standard error of 0.04
    change = np.concatenate([spread - loss, np.full(30, 0.4)])
    verdict = judge(CHAMPION, CHAMPION + change, ["old"] * 10 + ["new"] * 30, CONFIG)
    assert verdict.accepted is accepted


def test_todays_mix_weighs_the_gain():
    change = np.where(np.arange(40) < 4, 0.2, -0.03) + 0.05 * NOISE
    domains = ["new"] * 4 + ["old"] * 36
    of_all = judge(CHAMPION, CHAMPION + change, domains, CONFIG)
    assert not of_all.accepted
    assert of_all.gain == pytest.approx(-0.007, abs=0.005)
    today = judge(CHAMPION, CHAMPION + change, domains, CONFIG, {"new": 0.75, "unseen": 0.25})
    assert today.accepted
    assert today.gain == pytest.approx(0.2, abs=0.01)
    assert today.gain_low < today.gain < today.gain_high


def test_one_request_of_a_domain_tells_nothing():
    change = np.where(np.arange(40) < 1, 0.5, -0.01)
    verdict = judge(CHAMPION, CHAMPION + change, ["new"] + ["old"] * 39, CONFIG, {"new": 1.0})
    assert not verdict.accepted


def test_a_domain_of_too_few_requests_has_no_veto():
    change = np.where(np.arange(40) < 3, -0.1, 0.4)
    assert judge(CHAMPION, CHAMPION + change, ["old"] * 3 + ["new"] * 37, CONFIG).accepted


def test_too_few_requests_are_no_ground_for_a_verdict():
    verdict = judge(CHAMPION[:3], CHAMPION[:3] + 0.5, ["a"] * 3, CONFIG)
    assert not verdict.accepted
    assert "3 held-out requests" in verdict.reason
