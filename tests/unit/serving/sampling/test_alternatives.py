"""Second choices: the likeliest to be asked for, and found again where they are."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hotdraft.serving.messages.request import SamplingParams
from hotdraft.serving.sampling.alternatives import Alternatives, next_best
from hotdraft.serving.sampling.draw import Drawing
from hotdraft.serving.sampling.logits import SamplingBatch
from hotdraft.serving.sampling.penalties import AnswerTokens
from hotdraft.serving.sampling.verify import follow, verify


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


ROWS = 40_000


def logits(*probs: float) -> Tensor:
    return torch.tensor(probs).log().expand(ROWS, 1, len(probs))


@pytest.mark.parametrize("most", [0, 1])
def test_what_comes_after_an_alternative_is_drawn_whatever_was_drafted_behind_the_refused_token(most: int) -> None:
    """Whether one is read depends on the chances of the whole chain. So what the next round drafts at a place must
    not be what this one did: of the tokens a, b, c, d the target has b, and then c as often as d."""
    sampling = SamplingBatch.of([SamplingParams(temperature=1.0)] * ROWS, range(ROWS), torch.device("cpu"))
    even = logits(0, 0, 0.5, 0.5)

    def drawing(end: int) -> Drawing:
        tokens, start = torch.zeros(2, ROWS, 4, dtype=torch.int64)[0], torch.zeros(ROWS, 1, dtype=torch.int64)
        return Drawing(sampling, AnswerTokens(tokens, start, torch.full((ROWS, 1), end), 4), None)

    round_ = drawing(0)
    first_logits = logits(0.6, 0.4, 0, 0)
    first = round_.draw(first_logits)
    second_logits = torch.where(first[..., None] == 0, logits(0, 0, 0.9, 0.1), even)
    second = round_.draw(second_logits)
    proposal, positions = round_.proposal(), torch.arange(3).expand(ROWS, 3)
    read = torch.cat([logits(0, 1, 0, 0), second_logits, torch.zeros(ROWS, 1, 4)], 1)
    verdict = verify(read, proposal, positions, sampling, None)
    if most:
        best = [next_best(logits_of, drafted, 3, None)
                for logits_of, drafted in ((first_logits, first), (second_logits, second))]  # fmt: skip
        token_ids, chances = (torch.stack(parts, 1) for parts in zip(*best, strict=True))
        alternatives = Alternatives.likeliest(token_ids, chances, proposal.num_drafted, [most] * ROWS)
        with_leaf = torch.cat([read, even.expand(ROWS, most, 4)], 1)
        verdict, _ = follow(
            verdict, with_leaf, replace(proposal, alternatives=alternatives), positions, sampling, None
        )
    assert (verdict.token_ids[:, 0] == 1).all()
    again = drawing(1)
    again.draw(even)
    following = verify(
        torch.cat([even, even], 1), again.proposal(), torch.arange(1, 3).expand(ROWS, 2), sampling, None
    )
    came = torch.where(verdict.num_new == 1, following.token_ids[:, :1], verdict.token_ids[:, 1:2])
    assert (came == 2).float().mean() == pytest.approx(0.5, abs=4 * (0.25 / ROWS) ** 0.5)
