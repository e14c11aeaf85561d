import numpy as np
import pytest
import torch
import transformers

from hotdraft.training.batches.packing import pack
from hotdraft.training.scoring.forward import DraftForward, OutputHead, disable_dropout, hidden_states
from hotdraft.training.scoring.kept_prompts import KeptPrompts
from tests.models import tiny_llama, tiny_neox
from tests.unit.training.masked import draft_logits

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.3, "bos_token_id": None, "eos_token_id": None,
    "pad_token_id": None,
}  # fmt: skip


CHANGES = {
    "Granite": {"logits_scaling": 3.0},
    "Cohere": {"logit_scale": 0.5},
    "OPT": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "Mixtral": {"num_local_experts": 4},
    "Qwen3Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
}
NAMES = ["Llama", "GPTNeoX", "Gemma", "Granite", "Cohere", "GPT2", "OPT", "Mixtral", "Qwen3Moe"]


def build(name: str) -> transformers.PreTrainedModel:
    """A tiny model of the architecture `name`, in training mode."""
    torch.manual_seed(0)
    if name == "Llama":
        return tiny_llama(layers=2, seed=0, vocab_size=64).train()
    if name == "GPTNeoX":
        return tiny_neox(layers=2, seed=0).train()
    if name == "GPT2":
        config = transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4)
        return transformers.GPT2LMHeadModel(config).train()
    config = getattr(transformers, f"{name}Config")(**SIZES | CHANGES.get(name, {}))
    return getattr(transformers, f"{name}ForCausalLM")(config).train()


@pytest.mark.parametrize("name", NAMES)
def test_states_and_head_make_the_models_own_logits(name, make_llama, serve):
    model = build(name)
    disable_dropout(model)
    batch = pack(serve(make_llama(1), 3), max_length=1000)
    expected = draft_logits(model, batch)
    head = OutputHead(model)
    torch.testing.assert_close(head(hidden_states(model, batch)), expected)
    names = set(model.state_dict())
    assert set(DraftForward(model).state_dict()) == {f"model.{key}" for key in names}
    torch.testing.assert_close(draft_logits(model, batch), expected)


@pytest.mark.parametrize("name", NAMES)
def test_a_trimmed_head_makes_the_logits_of_its_tokens(name, make_llama, serve):
    model = build(name)
    disable_dropout(model)
    batch = pack(serve(make_llama(1), 3), max_length=1000)
    states = hidden_states(model, batch)
    vocabulary = torch.tensor([3, 4, 17, 50])
    trimmed = OutputHead(model, vocabulary)
    logits = trimmed(states)
    torch.testing.assert_close(logits[:, :-1], OutputHead(model)(states)[:, vocabulary])
    assert not logits.softmax(-1)[:, -1].any()
    assert trimmed.places(torch.tensor([[17, 0], [3, 63]])).tolist() == [[2, 4], [0, 4]]
    assert trimmed.knows(torch.tensor([17, 0])).tolist() == [True, False]


WINDOWED = {
    "Mistral": {"sliding_window": 5},
    "Qwen2": {
        "use_sliding_window": True, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", WINDOWED)
def test_a_packed_request_is_seen_through_the_models_windows(name, make_llama, serve):
    """Oracle: transformers' own forward pass of each request alone."""
    torch.manual_seed(0)
    sizes = {key: value for key, value in SIZES.items() if key != "head_dim"} | WINDOWED[name]
    config = getattr(transformers, f"{name}Config")(**sizes)
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    samples = serve(make_llama(1), 3)
    alone = []
    for sample in samples:
        tokens = torch.from_numpy(np.concatenate([sample.prompt_ids, sample.output_ids])).long()[None, :-1]
        alone.append(model(tokens, use_cache=False).logits[0, len(sample.prompt_ids) - 1 :])
    packed = OutputHead(model)(hidden_states(model, pack(samples, max_length=1000)))
    torch.testing.assert_close(packed, torch.cat(alone))
    kept = hidden_states(model, pack(samples, max_length=1000), KeptPrompts(1))
    torch.testing.assert_close(OutputHead(model)(kept), torch.cat(alone))
    unpacked = model(torch.arange(20)[None], use_cache=False).logits
    model.set_attn_implementation("sdpa")
    torch.testing.assert_close(unpacked, model(torch.arange(20)[None], use_cache=False).logits)


@pytest.mark.parametrize("name", ["GPT2", "OPT"])
def test_without_dropout_training_mode_computes_what_is_served(name, make_llama, serve):
    model = build(name)
    batch = pack(serve(make_llama(1), 3), max_length=1000)
    assert not torch.equal(draft_logits(model, batch), draft_logits(model, batch))
    disable_dropout(model)
    trained = draft_logits(model, batch)
    torch.testing.assert_close(trained, draft_logits(model.eval(), batch))


def test_chunks_cover_all_positions(make_llama, monkeypatch):
    head = OutputHead(make_llama(0))
    monkeypatch.setattr("hotdraft.training.scoring.forward.CHUNK_LOGITS", 64 * 3 + 1)
    assert [list(range(7))[rows] for rows in head.chunks(7)] == [[0, 1, 2], [3, 4, 5], [6]]
    monkeypatch.setattr("hotdraft.training.scoring.forward.CHUNK_LOGITS", 10)
    assert len(head.chunks(7)) == 7
