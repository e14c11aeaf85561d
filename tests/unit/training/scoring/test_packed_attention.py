from types import SimpleNamespace

import pytest
import torch

from hotdraft.pipeline.models.names import ModelError
from hotdraft.training.scoring import packed_attention as packed
from hotdraft.training.scoring.packed_attention import packed_attention

LENGTHS = [7, 1, 12]


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("before", [None, [4, 0, 9]])
@pytest.mark.parametrize("few", [2**20, 0])
def test_in_bfloat16_requests_attend_as_in_float32_with_the_same_gradients(window, before, few, monkeypatch):
    """Six heads of queries that share two of keys; by products, or by torch's fused kernel."""
    monkeypatch.setattr(packed, "FEW_SCORES", few)
    torch.manual_seed(0)
    rows, kept = sum(LENGTHS), sum(before or [])
    inputs = [
        torch.randn(1, heads, tokens, 8, dtype=torch.bfloat16)
        for heads, tokens in ((6, rows), (2, kept + rows), (2, kept + rows))
    ]
    lengths = torch.tensor(LENGTHS if before is None else [before, LENGTHS]).view(1, 1, -1, len(LENGTHS))
    module = SimpleNamespace(num_key_value_groups=3, is_causal=True, training=True)
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        parts = [one.to(dtype).requires_grad_() for one in inputs]
        output, _ = packed_attention(module, *parts, lengths, scaling=0.3, sliding_window=window)
        output.float().square().sum().backward()
        found[dtype] = [output.float(), *(part.grad.float() for part in parts)]
    assert found[torch.bfloat16][0].shape == (1, rows, 6, 8)
    for in_half, in_full in zip(found[torch.bfloat16], found[torch.float32], strict=True):
        torch.testing.assert_close(in_half, in_full, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("lengths", [None, torch.tensor([[[[3]]]])])
def test_sinks_are_refused_and_not_left_out(lengths):
    states = torch.zeros(1, 2, 3, 8)
    module = SimpleNamespace(num_key_value_groups=1, is_causal=True, training=True)
    with pytest.raises(ModelError, match="sinks"):
        packed_attention(module, states, states, states, lengths, s_aux=torch.ones(2))
