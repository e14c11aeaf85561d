"""Packing changes where the weights lie, not what they compute."""

import pytest
import torch

from serving.packed_linear import PackedLinear, pack_frozen
from tests.conftest import tiny_llama

pytestmark = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU has no bfloat16 in oneDNN"
)


@pytest.mark.parametrize("tokens", [1, 5, 33])
def test_agrees_with_the_plain_layer(tokens: int) -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(48, 80).bfloat16()
    inputs = torch.randn(2, tokens, 48).bfloat16()
    with torch.inference_mode():
        torch.testing.assert_close(PackedLinear(linear)(inputs), linear(inputs), rtol=2e-2, atol=2e-2)


def test_packs_the_target_and_a_shared_head_only() -> None:
    target, draft = tiny_llama(2, seed=1).bfloat16(), tiny_llama(1, seed=2).bfloat16()
    stranger = tiny_llama(1, seed=3).bfloat16()
    draft.get_output_embeddings().weight.data.copy_(target.get_output_embeddings().weight)
    pack_frozen(target, draft)
    assert not any(isinstance(module, torch.nn.Linear) for module in target.modules())
    assert draft.get_output_embeddings() is target.get_output_embeddings()
    assert isinstance(draft.model.layers[0].mlp.up_proj, torch.nn.Linear)

    other_target = tiny_llama(2, seed=1).bfloat16()
    pack_frozen(other_target, stranger)
    assert isinstance(stranger.get_output_embeddings(), torch.nn.Linear)


def test_float32_is_left_alone() -> None:
    target = tiny_llama(1, seed=1)
    pack_frozen(target, None)
    assert not any(isinstance(module, PackedLinear) for module in target.modules())
