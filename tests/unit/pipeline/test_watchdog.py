import numpy as np
import pytest

from pipeline.config import WatchdogConfig
from pipeline.watchdog import CRITICAL, AcceptanceWatch, looks

EXAMINED = 100


def serve(
    watch: AcceptanceWatch, domain: str, mean: float, requests: int, seed: int = 0, noise: float = 0.05
) -> None:
    for rate in np.random.default_rng(seed).normal(mean, noise, requests):
        watch.served(domain, round(EXAMINED * float(np.clip(rate, 0, 1))), EXAMINED)


@pytest.fixture
def watch() -> AcceptanceWatch:
    return AcceptanceWatch(WatchdogConfig(min_requests=10, max_requests=40, max_fall=0.03))


def test_a_real_fall_is_told_with_its_numbers(watch):
    serve(watch, "d", 0.6, 30)
    watch.swapped()
    serve(watch, "d", 0.4, 9, seed=1)
    assert watch.fall() is None, "too few requests to tell"
    serve(watch, "d", 0.4, 1, seed=2)
    fall = watch.fall()
    assert fall is not None
    assert fall.before == pytest.approx(0.6, abs=0.03)
    assert fall.after == pytest.approx(0.4, abs=0.03)
    # standard errors of two means: 0.05 / sqrt(30) and 0.05 / sqrt(10)
    assert fall.error == pytest.approx(0.018, abs=0.006)
    assert fall.requests == 10
    assert f"from {fall.before:.3f} to {fall.after:.3f}" in str(fall)
    assert "over 10 requests" in str(fall)


@pytest.mark.parametrize(
    ("after", "noise"), [(0.7, 0.05), (0.58, 0.001), (0.55, 0.35)], ids=["better", "within the margin", "by chance"]
)
def test_what_is_no_fall(watch, after, noise):
    serve(watch, "d", 0.6, 30, noise=noise)
    watch.swapped()
    serve(watch, "d", after, 20, seed=1, noise=noise)
    assert watch.fall() is None


def test_another_mix_of_domains_is_no_fall(watch):
    serve(watch, "easy", 0.8, 30)
    serve(watch, "hard", 0.3, 10)
    watch.swapped()
    serve(watch, "hard", 0.3, 20, seed=1)
    serve(watch, "new", 0.0, 20, seed=2)
    assert watch.fall() is None


def test_a_version_that_held_long_enough_is_trusted(watch):
    serve(watch, "d", 0.6, 30)
    watch.swapped()
    serve(watch, "d", 0.6, 41, seed=1)
    serve(watch, "d", 0.1, 100, seed=2)
    assert watch.fall() is None


def test_each_version_is_held_up_to_the_one_before(watch):
    serve(watch, "d", 0.6, 30)
    watch.swapped()
    serve(watch, "d", 0.3, 15, seed=1)
    assert watch.fall() is not None
    watch.swapped()
    serve(watch, "d", 0.3, 15, seed=2)
    assert watch.fall() is None


def test_nothing_is_told_without_a_past_or_without_drafts(watch):
    serve(watch, "d", 0.1, 30)
    assert watch.fall() is None
    watch.swapped()
    for _ in range(30):
        watch.served("d", 0, 0)
    assert watch.fall() is None


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (8, 60, [8, 12, 18, 27, 41, 60]),
        (12, 12, [12]),
        (12, 13, [12, 13]),
        (8, 1000, [8, 16, 32, 64, 128, 256, 511, 1000]),
    ],
)
def test_looks_grow_with_the_requests(first, last, expected):
    assert looks(first, last) == expected


def test_there_is_a_critical_value_for_every_number_of_looks():
    lengths = {len(looks(first, last)) for first in range(2, 40) for last in range(first, 3000, 7)}
    assert lengths == set(range(1, len(CRITICAL) + 1))


def rollbacks(after: float, swaps: int, *, max_fall: float) -> list[int]:
    """After how many requests each of `swaps` from an acceptance of 0.5 to `after` was found to be a fall."""
    generator = np.random.default_rng(3)
    found = []
    for _ in range(swaps):
        watch = AcceptanceWatch(WatchdogConfig(min_requests=8, max_requests=60, max_fall=max_fall))
        for mean, requests in ((0.5, 60), (after, 60)):
            watch.swapped()
            for rate in generator.beta(10 * mean, 10 * (1 - mean), requests):  # a spread of 0.15 at 0.5
                watch.served("d", round(EXAMINED * rate), EXAMINED)
                if watch.fall() is not None:
                    break
        if watch.fall() is not None:
            found.append(watch.fall().requests)
    return found


def test_few_false_alarms_over_all_looks():
    # 5 % by design, and a little more as spreads are estimated from few requests
    assert len(rollbacks(0.5, 1000, max_fall=0.0)) < 90
    assert len(rollbacks(0.5, 1000, max_fall=0.03)) < 40


def test_a_bad_draft_is_found_within_20_requests():
    found = rollbacks(0.2, 200, max_fall=0.03)
    assert len(found) == 200
    assert max(found) <= 18
