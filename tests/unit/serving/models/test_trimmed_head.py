"""A trimmed head gives the full head's logits of its tokens."""

import pytest
import torch
from torch import Tensor, nn

from hotdraft.serving.models.linear import cpu_has_bfloat16
from hotdraft.serving.models.trimmed_head import TrimmedHead

VOCABULARY = 97
IDS = torch.tensor([0, 3, 4, 50, 96])
OTHER_IDS = torch.tensor([1, 3, 60, 95, 96])


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    if request.param == torch.bfloat16 and not cpu_has_bfloat16():
        pytest.skip("this CPU has no bfloat16 in oneDNN")
    return request.param


@pytest.mark.parametrize("bias", [True, False])
def test_its_logits_are_those_of_the_full_head(dtype: torch.dtype, bias: bool) -> None:
    torch.manual_seed(0)
    full = nn.Linear(48, VOCABULARY, bias=bias).to(dtype)
    head = TrimmedHead(full, IDS)
    inputs = torch.randn(2, 3, 48).to(dtype)
    with torch.inference_mode():
        check(head, full, IDS, inputs)
        ids, weight = head.token_ids, head.linear.weight
        prepared = head.prepare(OTHER_IDS)
        check(head, full, IDS, inputs)  # preparing changes nothing yet
        head.install(OTHER_IDS, prepared)
        check(head, full, OTHER_IDS, inputs)
    assert head.token_ids is not ids, "whoever compares sees the change"
    assert head.linear.weight is weight


def check(head: TrimmedHead, full: nn.Linear, ids: Tensor, inputs: Tensor) -> None:
    assert head.token_ids.tolist() == ids.tolist()
    tolerance = 1e-5 if full.weight.dtype == torch.float32 else 2e-2
    torch.testing.assert_close(head(inputs), full(inputs)[..., ids], rtol=tolerance, atol=tolerance)


def test_what_it_was_made_of_is_not_touched() -> None:
    full = nn.Linear(8, VOCABULARY)
    weight, ids = full.weight.detach().clone(), IDS.clone()
    head = TrimmedHead(full, ids)
    with torch.inference_mode():
        head.install(OTHER_IDS, head.prepare(OTHER_IDS))
    assert torch.equal(full.weight, weight)
    assert torch.equal(ids, IDS)
