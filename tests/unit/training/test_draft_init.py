import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from pipeline.models import ModelError
from tests.conftest import tiny_llama, tiny_neox
from training.draft_init import cut_layers, freeze_shared

IDS = torch.arange(1, 9)[None]


def tiny_qwen2(layers: int, seed: int) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=257, hidden_size=32, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.3, tie_word_embeddings=True,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).eval()


def layers_of(model):
    return model.gpt_neox.layers if hasattr(model, "gpt_neox") else model.model.layers


@pytest.mark.parametrize("make", [tiny_llama, tiny_neox, tiny_qwen2])
@torch.no_grad()
def test_the_cut_computes_what_the_targets_chosen_layers_do(make):
    target = make(layers=4, seed=1)
    before = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    draft = cut_layers(target, [0, 3])
    assert draft.config.num_hidden_layers == 2
    for new, old in enumerate((0, 3)):
        for name, tensor in layers_of(draft)[new].state_dict().items():
            assert torch.equal(tensor, layers_of(target)[old].state_dict()[name]), name
    torch.testing.assert_close(draft.get_output_embeddings().weight, target.get_output_embeddings().weight)

    for parameter in draft.parameters():
        parameter.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in target.state_dict().items())

    draft = cut_layers(target, [0, 3])
    stack = layers_of(target)
    del stack[1:3]
    target.config.num_hidden_layers = 2
    torch.testing.assert_close(draft(IDS, use_cache=False).logits, target(IDS, use_cache=False).logits)


def test_a_layer_may_be_taken_twice_and_in_any_order():
    target = tiny_llama(layers=3, seed=1)
    draft = cut_layers(target, [2, 0, 2])
    weights = [layer.mlp.up_proj.weight for layer in draft.model.layers]
    assert torch.equal(weights[0], weights[2])
    assert torch.equal(weights[1], target.model.layers[0].mlp.up_proj.weight)
    assert weights[0].data_ptr() != weights[2].data_ptr()


@pytest.mark.parametrize("layers", [[], [3], [-1, 0]])
def test_layers_the_target_has_not(layers):
    with pytest.raises(ModelError, match="indices from 0 to 2, not"):
        cut_layers(tiny_llama(layers=3, seed=1), layers)


def test_embedding_and_head_do_not_train():
    draft = cut_layers(tiny_llama(layers=3, seed=1), [1])
    freeze_shared(draft)
    frozen = {name for name, parameter in draft.named_parameters() if not parameter.requires_grad}
    assert frozen == {"model.embed_tokens.weight", "lm_head.weight"}
