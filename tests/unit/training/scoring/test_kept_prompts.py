from dataclasses import replace

import numpy as np
import pytest
import torch

from hotdraft.training.batches.packing import pack
from hotdraft.training.scoring import kept_prompts
from hotdraft.training.scoring.forward import disable_dropout, hidden_states
from hotdraft.training.scoring.kept_prompts import KeptPrompts
from tests.unit.training.scoring.test_forward import build


@pytest.fixture
def batch(make_llama, serve):
    """Three requests, whose prompts differ in length."""
    return pack(serve(make_llama(1), 3), max_length=1000)


@pytest.mark.parametrize(
    "name", ["Llama", "GPTNeoX", "Gemma", "Granite", "Cohere", "GPT2", "OPT", "Qwen2", "Mistral"]
)
def test_states_after_kept_prompts_are_those_of_the_whole_request(name, batch):
    model = build(name)
    disable_dropout(model)
    prompts = KeptPrompts(2)
    expected = hidden_states(model, batch)
    for _ in range(2):  # read, then kept
        torch.testing.assert_close(hidden_states(model, batch, prompts), expected)


def test_a_prompt_is_read_once_until_it_is_too_old(batch):
    model = build("Llama")
    read = []
    model.base_model.register_forward_pre_hook(
        lambda module, args, kwargs: read.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    prompts, ahead = KeptPrompts(3), int(batch.supervised.numel())
    in_prompts = batch.input_ids.numel() - ahead
    for prompts.step in range(5):
        hidden_states(model, batch, prompts)
    assert read == [in_prompts, ahead, ahead, ahead, in_prompts, ahead, ahead]


def test_of_a_prompt_the_last_layer_makes_keys_alone(batch):
    model, through = build("Llama"), []
    for layer in model.model.layers:
        layer.mlp.register_forward_hook(lambda module, given, _: through.append(given[0].shape[1]))
    hidden_states(model, batch, KeptPrompts(1))
    answered = batch.supervised.numel()
    assert through == [batch.input_ids.numel() - answered, answered, answered]


@pytest.mark.parametrize("name", ["Llama", "GPT2", "Mistral"])
def test_what_prompts_begin_with_alike_is_read_once(name, make_llama, serve):
    start = list(range(1, 10))
    asked = [[*start, 50], [*start, 20, 21, 22, 50], [*start, 20, 31, 50], [40, 41, 42, 50]]
    samples = serve(make_llama(1), len(asked))
    batch = pack([replace(one, prompt_ids=np.array(ids)) for one, ids in zip(samples, asked, strict=True)])
    model, read = build(name), []
    disable_dropout(model)
    expected = hidden_states(model, batch)
    model.base_model.register_forward_pre_hook(
        lambda module, args, kwargs: read.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    torch.testing.assert_close(hidden_states(model, batch, KeptPrompts(2)), expected)
    assert read == [9 + 3, 3, 1, batch.supervised.numel()]


def test_a_prompt_is_as_old_as_what_it_goes_on_from(make_llama, serve):
    samples = serve(make_llama(1), 2)
    first, second = ([1, 2, 3, 4, 50], [1, 2, 3, 5, 50])
    batches = [pack([replace(samples[0], prompt_ids=np.array(ids))]) for ids in (first, second)]
    model, prompts = build("Llama"), KeptPrompts(3)
    hidden_states(model, batches[0], prompts)
    prompts.step = 2
    hidden_states(model, batches[1], prompts)
    assert [kept.read_at for _, kept in prompts._kept.items()] == [0, 0]
    prompts.step = 3
    hidden_states(model, batches[1], prompts)
    assert prompts._kept.get(batches[1].prompts[0]).read_at == 3


def test_a_prompt_that_begins_like_no_other_or_shares_a_template_alone_is_new(make_llama, serve):
    [sample] = serve(make_llama(1), 1)
    model, prompts = build("Llama"), KeptPrompts(3)
    for prompts.step, ids in enumerate(([1, 2, 3, 50], [4, 2, 3, 50], [4, 7, 8, 9, 10, 50])):
        hidden_states(model, pack([replace(sample, prompt_ids=np.array(ids))]), prompts)
    assert [kept.read_at for _, kept in prompts._kept.items()] == [0, 1, 2]


@pytest.mark.parametrize(("most", "expected"), [(1024, [30, 4, 4, 4]), (12, [20, 4, 4, 10, 4])])
def test_prompts_that_soon_will_be_asked_for_are_read_along_as_far_as_there_is_room(
    most, expected, make_llama, serve, monkeypatch
):
    monkeypatch.setattr(kept_prompts, "READ_TOGETHER", most)
    asked = [np.arange(11) + 12 * turn for turn in range(3)]
    samples = [replace(one, prompt_ids=ids) for one, ids in zip(serve(make_llama(1), 3), asked, strict=True)]
    batches = [pack([sample], max_length=14) for sample in samples]
    ahead = tuple(prompt for batch in batches for prompt in batch.prompts)
    model, prompts, read = build("Llama"), KeptPrompts(8), []
    alone = [hidden_states(model, batch) for batch in batches]
    model.base_model.register_forward_pre_hook(
        lambda module, args, kwargs: read.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    for prompts.step, (batch, expected_states) in enumerate(zip(batches, alone, strict=True)):
        states = hidden_states(model, batch._replace(prompts_ahead=ahead), prompts)
        torch.testing.assert_close(states, expected_states)
    assert read == expected


def test_gradients_go_through_answers_alone_and_survive_autocast(batch):
    model = build("Llama")
    with torch.autocast("cpu", torch.bfloat16):
        hidden_states(model, batch, KeptPrompts(1)).float().square().sum().backward()
    embedding = model.get_input_embeddings().weight.grad
    answered = batch.input_ids[0, batch.supervised].unique()
    others = torch.ones(len(embedding), dtype=torch.bool)
    others[answered] = False
    assert not embedding[others].any()
    assert embedding[answered].any()
    assert all(layer.mlp.up_proj.weight.grad.any() for layer in model.model.layers)


def test_what_is_kept_is_bounded_and_the_newest_stays(batch, monkeypatch):
    model = build("Llama")
    expected = hidden_states(model, batch)
    unbounded = KeptPrompts(100)
    hidden_states(model, batch, unbounded)
    last = batch.prompts[-1]
    monkeypatch.setattr(kept_prompts, "MOST_BYTES", unbounded._kept.get(last).nbytes)
    prompts = KeptPrompts(100)
    torch.testing.assert_close(hidden_states(model, batch, prompts), expected)
    assert [tokens for tokens, _ in prompts._kept.items()] == [last]
    torch.testing.assert_close(hidden_states(model, batch, prompts), expected)


def test_a_request_without_a_prompt_before_its_first_token_has_nothing_kept(make_llama, serve):
    samples = serve(make_llama(1), 2)
    samples[0] = replace(samples[0], prompt_ids=samples[0].prompt_ids[:1])
    for asked in (samples, samples[:1]):
        batch, model = pack(asked, max_length=1000), build("Llama")
        torch.testing.assert_close(hidden_states(model, batch, KeptPrompts(1)), hidden_states(model, batch))
