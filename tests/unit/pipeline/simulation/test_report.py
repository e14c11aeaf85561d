"""What a report makes of outcomes."""

from hotdraft.pipeline.simulation.playback import Outcome, Playback
from hotdraft.pipeline.simulation.report import build_report, swap_marks, windows


def outcome(request, domain="a", accepted=1, version=0, error=None):
    return Outcome(request, domain, 4, 2, 4, accepted, version, error)


def test_first_and_last_fifth_follow_submission_and_skip_failures():
    served = [outcome(n, accepted=4 if n > 8 else 1) for n in range(1, 11)]
    lost = Outcome(11, "a", error="gone")
    report = build_report(Playback([lost, *reversed(served)], 0, 0, 1.25, 2.0))
    assert (report["acceptance_rate_first"], report["acceptance_rate_last"]) == (0.25, 1.0)
    assert report["by_domain"]["a"]["acceptance_rate"] == (8 * 1 + 2 * 4) / 40


def test_nothing_drafted_has_no_rate():
    report = build_report(Playback([Outcome(1, "a", tokens=3)], 0, 0, None, 1.0))
    assert report["acceptance_rate_last"] is None
    assert report["windows"][0]["mean_acceptance_length"] is None
    assert report["k"] == 0


def test_an_adaptive_k_is_reported_as_its_mean():
    drafted = [Outcome(1, "a", tokens=4, rounds=2, drafted=8, accepted=2), Outcome(2, "a", tokens=6, rounds=6)]
    report = build_report(Playback(drafted, 0, 0, None, 1.0))
    assert report["k"] == 1.0
    assert report["acceptance_rate_last"] is None  # the last request decoded plainly


def test_windows_stay_within_a_domain_and_join_a_short_rest():
    mixed = [outcome(n, "ab"[n % 2]) for n in range(1, 49)]
    assert [(item["request"], item["domain"]) for item in windows(mixed)] == [
        (19, "b"),
        (20, "a"),
        (47, "b"),
        (48, "a"),
    ]
    assert [item["request"] for item in windows([outcome(n) for n in range(1, 16)])] == [10, 15]


def test_swap_marks_are_where_a_version_first_finished():
    order = [outcome(1), outcome(3, version=1), outcome(2, version=1), outcome(4, version=2), outcome(5, version=1)]
    assert swap_marks(Playback(order, 3, 0, None, 1.0)) == [(3, 1), (4, 2), (5, 1)]
