"""Second choices: the likeliest to be asked for, and found again where they are."""

import torch

from hotdraft.serving.sampling.alternatives import Alternatives, next_best


def test_the_likeliest_to_be_asked_for_are_taken() -> None:
    """By the chance of all before them and their own; of a row that drafted one token none beside the second."""
    token_ids = torch.tensor([[[11, 12], [21, 22]], [[11, 12], [21, 22]]])
    chances = torch.tensor([[0.5, 0.3, 0.1], [0.2, 0.7, 0.05]]).expand(2, -1, -1)
    found = Alternatives.likeliest(token_ids, chances, torch.tensor([2, 1]), [3, 4])
    assert found.counts.tolist() == [[3], [2]]
    assert found.token_ids[0, :3].tolist() == [21, 11, 12]
    assert found.positions[0, :3].tolist() == [1, 0, 0]
    assert found.token_ids[1, :2].tolist() == [11, 12]
    assert found.positions[1, :2].tolist() == [0, 0]


def test_what_is_no_number_counts_for_nothing() -> None:
    chances = torch.full((1, 1, 3), torch.nan)
    assert Alternatives.likeliest(torch.tensor([[[1, 2]]]), chances, torch.tensor([1]), [2]).counts.tolist() == [
        [0]
    ]


def test_one_is_found_by_token_and_position_among_those_that_count() -> None:
    row = Alternatives(torch.tensor([[7, 8, 7, 9]]), torch.tensor([[0, 0, 1, 0]]), torch.tensor([[3]]))
    asked = [(7, 0), (8, 0), (7, 1), (8, 1), (9, 0)]
    assert [int(row.find(torch.tensor([[t]]), torch.tensor([[at]]))) for t, at in asked] == [0, 1, 2, -1, -1]
    assert row.after(torch.tensor([[2]])).find(torch.tensor([[7]]), torch.tensor([[3]])) == 2


def test_next_best_leave_the_drafted_token_out() -> None:
    probs = torch.tensor([[[0.4, 0.3, 0.2, 0.1]]])
    token_ids, chances = next_best(probs.log(), torch.tensor([[1]]), 2, None)
    assert token_ids.tolist() == [[0, 2]]
    torch.testing.assert_close(chances, torch.tensor([[0.3, 0.4, 0.2]]))
    named, _ = next_best(probs.log(), torch.tensor([[30]]), 9, torch.tensor([10, 20, 30, 40]))
    assert named.tolist() == [[10, 20, 40]]
