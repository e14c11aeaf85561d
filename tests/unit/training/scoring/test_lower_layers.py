from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

from hotdraft.pipeline.config.learning import LoraSection
from hotdraft.training.batches.packing import pack
from hotdraft.training.fit.lora import build_lora
from hotdraft.training.scoring.forward import disable_dropout, hidden_states
from hotdraft.training.scoring.kept_prompts import KeptPrompts
from hotdraft.training.scoring.layer_span import is_divisible
from hotdraft.training.scoring.lower_layers import LowerLayers, LowerStates, leave_lower
from tests.unit.training.scoring.test_forward import SIZES, WINDOWED, build


@pytest.fixture
def asked(make_llama, serve):
    """Four requests; three prompts begin alike, one is empty before its first token that counts."""
    start = list(range(1, 10))
    prompts = [[*start, 50], [*start, 20, 21, 22, 50], [*start, 20, 31, 50], [40]]
    samples = serve(make_llama(1), len(prompts))
    return [replace(one, prompt_ids=np.array(ids)) for one, ids in zip(samples, prompts, strict=True)]


def counted(layer):
    """Of a layer, the tokens of each of its passes."""
    passes = []
    layer.register_forward_hook(lambda module, given, _: passes.append(given[0].shape[1]))
    return passes


def lower_of(model, kept=None):
    return LowerLayers(model, 1, b"", LowerStates() if kept is None else kept)


@pytest.mark.parametrize("name", ["Llama", "GPTNeoX", "Granite", "Cohere", "Qwen2", "Mistral", "Mixtral"])
def test_states_are_those_of_the_whole_model_whoever_asks_first(name, asked):
    model, batch = build(name).eval(), pack(asked, max_length=1000)
    expected, kept = hidden_states(model, batch), LowerStates()
    for _ in range(2):
        prompts = KeptPrompts(2, lower_of(model, kept))
        for _ in range(2):
            torch.testing.assert_close(hidden_states(model, batch, prompts), expected)


def test_which_models_can_be_divided_is_tried():
    can = {name: is_divisible(build(name).eval(), 1) for name in ("Llama", "GPTNeoX", "Qwen2", "GPT2", "OPT")}
    assert can == {"Llama": True, "GPTNeoX": True, "Qwen2": True, "GPT2": False, "OPT": False}
    assert not is_divisible(build("Llama"), 0)


@pytest.mark.parametrize("name", WINDOWED)
def test_windows_of_the_layers_above_stay_theirs(name, asked):
    torch.manual_seed(0)
    sizes = {key: value for key, value in SIZES.items() if key != "head_dim"} | WINDOWED[name]
    model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**sizes)).eval()
    batch = pack(asked, max_length=1000)
    expected = hidden_states(model, batch)
    torch.testing.assert_close(hidden_states(model, batch, KeptPrompts(2, lower_of(model))), expected)


def test_each_token_goes_through_them_once_for_all_steps_and_verdicts(asked):
    model, batch = build("Llama").eval(), pack(asked, max_length=1000)
    below, above = map(counted, model.model.layers)
    kept = LowerStates()
    for _ in range(3):
        prompts = KeptPrompts(1, lower_of(model, kept))
        for prompts.step in range(2):
            hidden_states(model, batch, prompts)
    shared = 2 * 9 + 1
    assert sum(below) == batch.input_ids.numel() - shared
    assert above == 6 * [batch.supervised.numel()]


def test_what_one_request_begins_with_is_not_taken_for_anothers_answer(asked):
    """The tokens of one request are another's prompt."""
    first = asked[0]
    whole = np.concatenate([first.prompt_ids, first.output_ids])
    both = [replace(asked[1], prompt_ids=whole), first]
    model, lower = build("Llama").eval(), LowerStates()
    for samples in (both, both[::-1], both[:1], both[1:]):
        batch = pack(samples, max_length=1000)
        states = hidden_states(model, batch, KeptPrompts(1, lower_of(model, lower)))
        torch.testing.assert_close(states, hidden_states(model, batch))


def test_what_is_no_longer_kept_is_read_again(asked, monkeypatch):
    model, batch = build("Llama").eval(), pack(asked, max_length=1000)
    kept = LowerStates()
    monkeypatch.setattr(kept.prompts, "_max_bytes", 1)
    monkeypatch.setattr(kept.answers, "_max_bytes", 1)
    for _ in range(2):
        states = hidden_states(model, batch, KeptPrompts(1, lower_of(model, kept)))
        torch.testing.assert_close(states, hidden_states(model, batch))


def test_what_lies_above_learns_as_it_does_under_frozen_layers(asked):
    base, batch = build("Llama").eval(), pack(asked, max_length=1000)

    def gradients(prompts):
        torch.manual_seed(1)
        model = build_lora(base, LoraSection(rank=2), "none")
        disable_dropout(model)
        leave_lower(model, 1)
        hidden_states(model, batch, prompts).square().sum().backward()
        return {name: one.grad for name, one in model.named_parameters() if one.grad is not None}

    expected, found = gradients(KeptPrompts(2)), gradients(KeptPrompts(2, lower_of(base)))
    assert expected
    assert all(".layers.1." in name for name in expected)
    assert expected.keys() == found.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient)
