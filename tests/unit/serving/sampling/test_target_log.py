"""What is logged of the target is what its distribution says."""

import pytest
import torch

from hotdraft.serving.sampling.target_log import likeliest


@pytest.mark.parametrize("vocab", [17, 640, 8192, 8191, 49_152])
def test_the_likeliest_are_those_of_topk_however_large_the_vocabulary(vocab: int) -> None:
    values = torch.randn(2, 3, vocab)
    number = min(64, vocab)
    top, places = likeliest(values, number)
    assert torch.equal(top, values.topk(number).values)
    assert torch.equal(values.gather(-1, places), top)
    assert all(len(row.unique()) == number for row in places.flatten(0, 1))
    nothing = likeliest(values[:0], number)
    assert nothing[1].shape == (0, 3, number)
