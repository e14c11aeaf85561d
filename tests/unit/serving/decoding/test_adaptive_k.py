"""The k that is chosen, against what arithmetic says is best, for traffic of known acceptance and costs."""

import numpy as np
import pytest

from hotdraft.serving.decoding.adaptive_k import AcceptanceEstimate, AdaptiveK
from hotdraft.serving.decoding.costs import RoundCosts

MAX_K = 4


def linear_costs(draft_step: float, verified_token: float = 0.02) -> RoundCosts:
    """A plain round of one row takes 1 second; every drafted token adds its drafting and its verification."""
    each = draft_step + verified_token
    rounds = {
        rows: [1 + 0.1 * (rows - 1) + k * each * (1 + 0.2 * (rows - 1)) for k in range(MAX_K + 1)]
        for rows in (1, 8)
    }
    return RoundCosts(rounds, {1: draft_step, 8: draft_step})


def mean_tokens(acceptance: float, k: int) -> float:
    return 1 + sum(acceptance**i for i in range(1, k + 1))


def speeds(costs: RoundCosts, acceptance: float, rows: int) -> list[float]:
    """Tokens a second of one request, by fixed k."""
    return [mean_tokens(acceptance, k) / costs.round_seconds(rows, k) for k in range(MAX_K + 1)]


class Traffic:
    """Requests of 100 tokens, `rows` at once, answered with the k that is chosen."""

    def __init__(self, costs: RoundCosts, rows: int = 1, seed: int = 0) -> None:
        self.costs, self.rows = costs, rows
        self.adaptive = AdaptiveK(costs)
        self._everything = AcceptanceEstimate(MAX_K)
        self._requests: list[tuple[AcceptanceEstimate, float]] = []
        self._random = np.random.default_rng(seed)

    def run(self, rounds: int, acceptance: float) -> tuple[float, list[int]]:
        """Mean tokens a second of a request, and each round's k."""
        seconds = tokens = 0.0
        ks = []
        for _ in range(rounds):
            while len(self._requests) < self.rows:
                self._requests.append((AcceptanceEstimate(MAX_K, prior=self._everything), 100))
            k = self.adaptive.choose([estimate for estimate, _ in self._requests], 100)
            going_on = []
            for estimate, left in self._requests:
                rejected = np.flatnonzero(self._random.random(k) >= acceptance)
                accepted = int(rejected[0]) if len(rejected) else k
                estimate.observe(accepted, k)
                going_on.append((estimate, left - accepted - 1))
            self._requests = [(estimate, left) for estimate, left in going_on if left > 0]
            seconds += self.costs.round_seconds(self.rows, k)
            tokens += mean_tokens(acceptance, k)  # what it brings on average: luck is not the chooser's
            ks.append(k)
        return tokens / seconds, ks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("acceptance", "draft_step", "rows"),
    [
        (0.0, 0.2, 1),
        (0.0, 0.02, 1),
        (0.1, 0.2, 1),
        (0.3, 0.1, 1),
        (0.5, 0.2, 1),
        (0.7, 0.2, 1),
        (0.95, 0.2, 1),
        (0.6, 0.6, 1),
        (0.0, 0.02, 8),
        (0.7, 0.1, 8),
    ],
)
def test_close_to_the_best_fixed_k(acceptance: float, draft_step: float, rows: int) -> None:
    costs = linear_costs(draft_step)
    speed, _ = Traffic(costs, rows).run(5000, acceptance)
    assert speed > 0.97 * max(speeds(costs, acceptance, rows))


@pytest.mark.parametrize("rows", [1, 8])
def test_recovers_when_acceptance_jumps(rows: int) -> None:
    costs = linear_costs(0.2)
    traffic = Traffic(costs, rows)
    traffic.run(2000, 0.0)
    traffic.run(300, 0.8)
    speed, _ = traffic.run(1000, 0.8)
    assert speed > 0.97 * max(speeds(costs, 0.8, rows))


@pytest.mark.parametrize("draft_step", [0.05, 0.2])
def test_gives_up_when_acceptance_falls_however_long_it_was_good(draft_step: float) -> None:
    costs = linear_costs(draft_step)
    traffic = Traffic(costs)
    traffic.run(5000, 0.95)
    traffic.run(200, 0.0)
    speed, _ = traffic.run(1000, 0.0)
    assert speed > 0.97 * max(speeds(costs, 0.0, 1))


class Known(AcceptanceEstimate):
    """Acceptance known exactly."""

    def __init__(self, acceptance: float) -> None:
        super().__init__(MAX_K)
        self._rate = acceptance

    def rates(self) -> np.ndarray:
        return np.full(MAX_K, self._rate)


@pytest.mark.parametrize(
    ("acceptance", "draft_step", "best"),
    [(0.02, 0.2, 0), (0.5, 0.35, 1), (0.5, 0.1, 2), (0.7, 0.2, 3), (0.9, 0.1, 4)],
)
def test_chooses_the_best_k_and_now_and_then_one_more(acceptance: float, draft_step: float, best: int) -> None:
    costs = linear_costs(draft_step)
    assert best == int(np.argmax(speeds(costs, acceptance, 1)))
    adaptive, known = AdaptiveK(costs), Known(acceptance)
    chosen = [adaptive.choose([known], 100) for _ in range(1000)]
    assert set(chosen) == {best, min(best + 1, MAX_K)}
    # exploration keeps to its share of the time
    lost = sum(
        costs.round_seconds(1, k) - mean_tokens(acceptance, k) / speeds(costs, acceptance, 1)[best] for k in chosen
    )
    assert lost <= 0.03 * sum(costs.round_seconds(1, k) for k in chosen)


def test_requests_that_differ_are_weighed_together() -> None:
    costs = linear_costs(0.2)
    best = {rate: AdaptiveK(costs).choose([Known(rate)] * 8, 100) for rate in (0.0, 0.9)}
    assert best[0.0] == 0 < best[0.9]
    tokens = [1 + (mean_tokens(0.9, k) - 1) / 2 for k in range(MAX_K + 1)]
    expected = int(np.argmax([tokens[k] / costs.round_seconds(8, k) for k in range(MAX_K + 1)]))
    assert AdaptiveK(costs).choose([Known(0.9), Known(0.0)] * 4, 100) == expected


@pytest.mark.parametrize("longest", [1, 2, 3, 20])
def test_never_drafts_what_nobody_may_take(longest: int) -> None:
    adaptive, known = AdaptiveK(linear_costs(0.01)), Known(0.99)
    assert {adaptive.choose([known], longest) for _ in range(300)} == {min(longest - 1, MAX_K)}


def test_what_follows_a_rejection_is_not_judged() -> None:
    estimate, untouched = AcceptanceEstimate(MAX_K), AcceptanceEstimate(MAX_K).rates()
    estimate.observe(1, 4)
    rates = estimate.rates()
    assert rates[0] > untouched[0]
    assert rates[1] < untouched[1]
    assert rates[2:].tolist() == untouched[2:].tolist()
    estimate.observe(0, 0)
    assert estimate.rates().tolist() == rates.tolist(), "a plain round says nothing"


def test_rates_and_expected_tokens_come_near_the_truth() -> None:
    truth = np.array([0.9, 0.6, 0.3, 0.8])
    everything = AcceptanceEstimate(MAX_K)
    random, seen = np.random.default_rng(0), []
    for _ in range(3000):
        accepted = int((random.random(MAX_K) < truth).cumprod().sum())
        everything.observe(accepted, MAX_K)
        seen.append(everything.rates())
    assert np.mean(seen[200:], axis=0) == pytest.approx(truth, abs=0.07)
    fixed = Known(0.5)
    assert fixed.expected_tokens().tolist() == [mean_tokens(0.5, k) for k in range(MAX_K + 1)]


def test_a_request_begins_with_what_all_traffic_taught() -> None:
    everything = AcceptanceEstimate(MAX_K)
    first = AcceptanceEstimate(MAX_K, prior=everything)
    for _ in range(200):
        first.observe(4, 4)
    assert everything.rates().min() > 0.9
    second = AcceptanceEstimate(MAX_K, prior=everything)
    assert second.rates().tolist() == everything.rates().tolist()
    for _ in range(20):
        second.observe(0, 4)
    assert second.rates()[0] < first.rates()[0], "and then learns for itself"
