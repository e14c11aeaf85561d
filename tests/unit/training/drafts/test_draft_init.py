import copy

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from hotdraft.pipeline.config.learning import PredistillConfig
from hotdraft.pipeline.models.draft_folder import save_draft
from hotdraft.pipeline.models.loading import fingerprint, load_causal_lm
from hotdraft.pipeline.models.names import Cut, ModelError
from hotdraft.training.drafts.draft_init import check_draft, cut_layers, freeze_shared, make_draft
from hotdraft.training.drafts.feed_forward import choose_channels
from hotdraft.training.drafts.layer_choice import block_influence, even_layers, most_important
from tests.models import save, tiny_llama, tiny_neox, tiny_tokenizer

IDS = torch.arange(1, 9)[None]
SHARED = {"model.embed_tokens.weight", "lm_head.weight"}


def tiny_qwen2(layers: int, seed: int) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=257, hidden_size=32, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.3, tie_word_embeddings=True,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).eval()


def layers_of(model):
    return model.gpt_neox.layers if hasattr(model, "gpt_neox") else model.model.layers


def frozen(model) -> set[str]:
    return {name for name, parameter in model.named_parameters() if not parameter.requires_grad}


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


def test_the_ends_of_a_text_are_the_targets():
    target = tiny_llama(layers=2, seed=1)
    target.generation_config.eos_token_id = [255, 256]
    assert cut_layers(target, [0]).generation_config.eos_token_id == [255, 256]


def test_embedding_and_head_do_not_train():
    draft = cut_layers(tiny_llama(layers=3, seed=1), [1])
    freeze_shared(draft)
    assert frozen(draft) == SHARED


def test_even_layers_reach_from_the_first_to_the_last():
    assert even_layers(30, 4) == [0, 10, 19, 29]
    assert even_layers(4, 4) == [0, 1, 2, 3]
    assert even_layers(12, 1) == [0]
    for count in range(1, 40):
        for number in range(1, count + 1):
            layers = even_layers(count, number)
            assert len(set(layers)) == number
            assert layers[0] == 0
            assert number == 1 or layers[-1] == count - 1


def test_the_most_important_layers_keep_their_order():
    assert most_important(torch.tensor([0.1, 0.5, 0.2, 0.5, 0.9]), 3) == [1, 3, 4]
    assert most_important(torch.tensor([0.5, 0.5, 0.5]), 2) == [0, 1]


@torch.no_grad()
def quieten(model, layer: int, factor: float) -> None:
    """Make a layer add `factor` of what it did to the hidden state."""
    model.model.layers[layer].self_attn.o_proj.weight.mul_(factor)
    model.model.layers[layer].mlp.down_proj.weight.mul_(factor)


@pytest.mark.parametrize("make", [tiny_llama, tiny_qwen2])
def test_block_influence_is_what_the_layers_do_to_the_hidden_state(make):
    target = make(layers=4, seed=1)
    quieten(target, 1, 0.0)
    quieten(target, 2, 0.05)
    batches = [torch.randint(256, (2, 16)), torch.randint(256, (1, 8))]
    influence = block_influence(target, batches)
    assert not any(layer._forward_hooks for layer in target.model.layers)
    assert influence[1] == pytest.approx(0, abs=1e-6)
    assert influence[1] < influence[2] < min(influence[0], influence[3])

    with torch.no_grad():  # the hidden states as transformers tells them; its last one is normalised already
        states = [target(ids, output_hidden_states=True).hidden_states for ids in batches]
    for layer in range(3):
        similar = [torch.cosine_similarity(s[layer], s[layer + 1], dim=-1).flatten() for s in states]
        assert influence[layer] == pytest.approx(1 - torch.cat(similar).mean().item(), abs=1e-5)


def test_layers_by_importance():
    target = tiny_llama(layers=5, seed=1)
    for quiet in (1, 3):
        quieten(target, quiet, 0.01)
    settings = PredistillConfig(layers=3, layer_choice="importance")
    draft, layers = make_draft(target, settings, [IDS])
    assert layers == [0, 2, 4]
    assert frozen(draft) == SHARED
    for new, old in enumerate(layers):
        assert torch.equal(draft.model.layers[new].mlp.up_proj.weight, target.model.layers[old].mlp.up_proj.weight)
    with pytest.raises(ModelError, match="importance on text, and there is none"):
        make_draft(target, settings)


@pytest.mark.parametrize("make", [tiny_llama, tiny_qwen2])
@pytest.mark.parametrize("batches", [[], [IDS]], ids=["weights", "text"])
@torch.no_grad()
def test_channels_that_do_nothing_go_first(make, batches):
    target = make(layers=3, seed=1)
    generator = torch.Generator().manual_seed(0)
    used = {layer: torch.randperm(64, generator=generator)[:24].sort().values for layer in (0, 2)}
    for layer, channels in used.items():
        idle = torch.ones(64, dtype=torch.bool)
        idle[channels] = False
        target.model.layers[layer].mlp.down_proj.weight[:, idle] = 0
    draft, layers = make_draft(target, PredistillConfig(layers=[0, 2], feed_forward=24), batches)
    assert layers == [0, 2]
    assert draft.config.intermediate_size == 24
    for new, old in enumerate(layers):
        assert draft.model.layers[new].mlp.down_proj.weight.shape == (32, 24)
        hidden = torch.randn(5, 32, generator=generator)
        torch.testing.assert_close(draft.model.layers[new].mlp(hidden), target.model.layers[old].mlp(hidden))


@torch.no_grad()
def test_channels_are_ranked_by_their_activation_on_text():
    target = tiny_llama(layers=1, seed=1)
    mlp = target.model.layers[0].mlp
    mlp.down_proj.weight.fill_(1.0)
    seen: list[torch.Tensor] = []
    handle = mlp.down_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    target(IDS)
    handle.remove()
    expected = seen[0].abs().mean((0, 1)).topk(7).indices.sort().values
    assert torch.equal(choose_channels(target, [0], 7, [IDS])[0], expected)


def test_an_mlp_of_another_kind_cannot_be_narrowed(tiny_neox_target):
    target = tiny_neox(layers=2, seed=3)
    message = "mlp of gate_proj, up_proj, down_proj, which those of GPTNeoXForCausalLM are not"
    with pytest.raises(ModelError, match=message):
        make_draft(target, PredistillConfig(layers=1, feed_forward=16))
    with pytest.raises(ModelError, match=message):
        check_draft(tiny_neox_target, PredistillConfig(layers=1, feed_forward=16))
    assert check_draft(tiny_neox_target, PredistillConfig(layers=1)).num_hidden_layers == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": []}, "distinct indices from 0 to 2 in ascending order, at least one, not"),
        ({"layers": [0, 3]}, r"not \[0, 3\]"),
        ({"layers": [-1, 2]}, r"not \[-1, 2\]"),
        ({"layers": [1, 1]}, r"not \[1, 1\]"),
        ({"layers": [2, 0]}, r"not \[2, 0\]"),
        ({"layers": 4}, "layers is 4, and the target has 3 layers"),
        ({"layers": 2, "feed_forward": 65}, "feed_forward is 65, and the target's layers have 64 channels"),
    ],
)
def test_what_the_target_has_not_is_told_from_its_config(tiny_target, changes, message):
    settings = PredistillConfig(**changes)
    with pytest.raises(ModelError, match=message):
        check_draft(tiny_target, settings)
    with pytest.raises(ModelError, match=message):
        make_draft(load_causal_lm(tiny_target), settings)


@pytest.mark.parametrize("changes", [{"layers": 2}, {"layers": [1]}, {"layers": 3, "feed_forward": 16}])
def test_the_config_is_known_before_the_weights_are(tiny_target, changes):
    settings = PredistillConfig(**changes)
    found = check_draft(tiny_target, settings)
    made, _ = make_draft(load_causal_lm(tiny_target), settings)
    for name in ("num_hidden_layers", "intermediate_size", "hidden_size", "vocab_size"):
        assert getattr(found, name) == getattr(made.config, name), name


def test_lists_by_layer_are_cut_too(tmp_path):
    config = Qwen2Config(
        vocab_size=257, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, use_sliding_window=True, sliding_window=8, max_window_layers=2,
    )  # fmt: skip
    folder = save(Qwen2ForCausalLM(config), tmp_path)
    assert check_draft(folder, PredistillConfig(layers=[1, 2])).layer_types == [
        "full_attention",
        "sliding_attention",
    ]


def test_an_existing_model_goes_on_whole(tiny_target, tiny_draft):
    settings = PredistillConfig(draft=tiny_draft)
    target = load_causal_lm(tiny_target)
    assert check_draft(tiny_target, settings).num_hidden_layers == 1
    draft, layers = make_draft(target, settings)
    assert layers is None
    for name, tensor in load_causal_lm(tiny_draft).state_dict().items():
        assert torch.equal(draft.state_dict()[name], tensor), name
    assert not frozen(draft)


def test_an_existing_model_keeps_sharing_what_it_shares(tiny_target, tmp_path):
    target = load_causal_lm(tiny_target)
    folder = save(cut_layers(target, [0]), tmp_path)
    draft, _ = make_draft(target, PredistillConfig(draft=folder))
    assert frozen(draft) == SHARED


def test_an_existing_model_of_another_vocabulary(tiny_target, tiny_draft, tmp_path):
    tokenizer = tiny_tokenizer()
    vocabulary = tokenizer.get_vocab()
    swapped = {"a": vocabulary["b"], "b": vocabulary["a"]}  # as many tokens, other ids
    state = tokenizer.backend_tokenizer.to_str()
    for token, identity in swapped.items():
        state = state.replace(f'"{token}":{vocabulary[token]}', f'"{token}":{identity}', 1)
    tiny_llama(layers=1, seed=2).save_pretrained(tmp_path)
    type(tokenizer)(tokenizer_object=type(tokenizer.backend_tokenizer).from_str(state)).save_pretrained(tmp_path)
    ids = rf"({vocabulary['a']}|{vocabulary['b']})"
    with pytest.raises(ModelError, match=rf"4 entries differ, such as '[ab]': id {ids} in the target, {ids} in"):
        check_draft(tiny_target, PredistillConfig(draft=str(tmp_path)))


def test_an_existing_model_too_small_for_its_tokenizer(tiny_target, tmp_path):
    folder = save(tiny_llama(layers=1, seed=2, vocab_size=256), tmp_path)
    with pytest.raises(ModelError, match="has 256 embeddings, and its tokenizer's ids go up to 256"):
        check_draft(tiny_target, PredistillConfig(draft=folder))


@pytest.mark.parametrize("make", [tiny_llama, tiny_qwen2])
@pytest.mark.parametrize("slim", [False, True])
@torch.no_grad()
def test_a_narrow_cut_comes_back_from_its_folder(tmp_path, make, slim):
    base = save(make(layers=3, seed=1), tmp_path / "base")
    draft, layers = make_draft(load_causal_lm(base), PredistillConfig(layers=2, feed_forward=16), [IDS])
    assert layers is not None
    for parameter in draft.parameters():
        if parameter.requires_grad:
            parameter.add_(0.01 * torch.randn_like(parameter))
    (tmp_path / "draft").mkdir()
    cut = Cut(base, fingerprint(base), layers, 16)
    expected = draft(IDS).logits
    save_draft(tmp_path / "draft", copy.deepcopy(draft), tiny_tokenizer(), cut, slim=slim)
    torch.testing.assert_close(load_causal_lm(str(tmp_path / "draft"))(IDS).logits, expected)
