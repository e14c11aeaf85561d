import numpy as np
import pytest

from pipeline.config import WatchdogConfig
from pipeline.watchdog import AcceptanceWatch

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
    serve(watch, "d", 0.4, 6, seed=2)
    fall = watch.fall()
    assert fall is not None
    assert fall.before == pytest.approx(0.6, abs=0.03)
    assert fall.after == pytest.approx(0.4, abs=0.03)
    # standard errors of two means: 0.05 / sqrt(30) and 0.05 / sqrt(15)
    assert fall.error == pytest.approx(0.016, abs=0.006)
    assert fall.requests == 15
    assert f"from {fall.before:.3f} to {fall.after:.3f}" in str(fall)
    assert "over 15 requests" in str(fall)


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
