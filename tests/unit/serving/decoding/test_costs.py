"""Costs between measured numbers of rows, and a decoder that serves as before once they are measured."""

import pytest

from hotdraft.serving.decoding.costs import RoundCosts, profile_costs, rows_to_measure
from tests.unit.serving.decoders import GREEDY, PROMPTS, batch, greedy_reference, make_decoder, run, start


def test_between_and_beyond_what_was_measured_lies_a_straight_line() -> None:
    costs = RoundCosts({4: [16.0, 20.0], 1: [10.0, 11.0], 8: [16.0, 40.0]}, {1: 1.0, 4: 2.5, 8: 2.5})
    assert costs.most == 1
    assert [costs.verify_seconds(rows)[0] for rows in (1, 2, 3, 4, 6, 8, 9)] == [10, 12, 14, 16, 16, 16, 16]
    assert [costs.verify_seconds(rows)[1] for rows in (1, 2, 4, 6, 8, 10)] == [11, 14, 20, 30, 40, 50]
    assert [costs.round_seconds(rows, 1) for rows in (1, 4)] == [12, 22.5]
    assert [costs.draft_step_seconds(rows) for rows in (1, 3, 5)] == [1.0, 2.0, 2.5]
    assert costs.cost_ratio(3) == pytest.approx(2 / 14)


def test_one_measured_number_of_rows_stands_for_all() -> None:
    costs = RoundCosts({1: [2.0, 3.0]}, {1: 0.5})
    assert [costs.verify_seconds(rows)[1] for rows in (1, 2, 5)] == [3.0] * 3


@pytest.mark.parametrize(
    ("slots", "rows"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])]
)
def test_which_rows_are_measured(slots: int, rows: list[int]) -> None:
    assert rows_to_measure(slots) == rows


@pytest.mark.parametrize("draft", ["tiny_draft", None])
def test_a_decoder_serves_as_before(request: pytest.FixtureRequest, tiny_target: str, draft: str | None) -> None:
    decoder = make_decoder(tiny_target, request.getfixturevalue(draft) if draft else None)
    costs = profile_costs(decoder, [1, 2, 4], 6)
    assert costs.most == 6
    assert decoder.max_k == (4 if draft else 0)
    for rows in (1, 2, 4):
        assert costs.verify_seconds(rows).min() > 0
        assert (costs.draft_step_seconds(rows) > 0) == (draft is not None)
    start(decoder, PROMPTS)
    outputs = run(decoder, [3, 0, 2] if draft else [0], batch([GREEDY] * len(PROMPTS)), len(PROMPTS))
    assert outputs == greedy_reference(tiny_target, PROMPTS)
