"""Worked by hand."""

import pytest

from hotdraft.serving.benchmark.figures.theory import (
    RoundFigures,
    bandwidth_share,
    engine_efficiency,
    predicted_speed_up,
)

FIGURES = RoundFigures(
    plain_round_seconds=0.020, draft_step_seconds=0.005, drafted_per_round=2.0, mean_acceptance_length=2.1
)


def test_cost_ratio_and_prediction() -> None:
    assert FIGURES.cost_ratio == 0.25
    assert predicted_speed_up(FIGURES) == pytest.approx(2.1 / 1.5)


@pytest.mark.parametrize(("rate", "k"), [(0.8, 3), (0.5, 1), (0.3, 4)])
def test_it_is_the_formula_of_the_paper_where_positions_are_independent(rate: float, k: int) -> None:
    length = sum(rate**position for position in range(k + 1))  # 1 + the chance that each drafted token survives
    paper = (1 - rate ** (k + 1)) / ((1 - rate) * (0.25 * k + 1))
    assert predicted_speed_up(RoundFigures(0.020, 0.005, k, length)) == pytest.approx(paper)


def test_drafting_that_is_never_accepted_slows_down() -> None:
    assert predicted_speed_up(RoundFigures(0.020, 0.005, 4.0, 1.0)) == 0.5


def test_efficiency() -> None:
    assert engine_efficiency(1.26, FIGURES) == pytest.approx(0.9)


def test_bandwidth_share() -> None:
    assert bandwidth_share(0.020, 300_000_000, 30e9) == pytest.approx(0.5)  # 15 of 30 GB/s
