import json

import pytest
import torch
from pydantic import ValidationError

from hotdraft.pipeline.config.learning import PredistillConfig
from hotdraft.pipeline.models.hidden_state_draft import probe_inputs
from hotdraft.pipeline.models.loading import fingerprint, load_causal_lm, read_tensors, save_cut
from hotdraft.pipeline.models.names import Cut, ModelError
from hotdraft.training.drafts.draft_init import check_draft, make_draft
from tests.models import save, tiny_llama, tiny_neox


def settings(**changes):
    return PredistillConfig(**{"hidden_states": [1, 3], **changes})


@pytest.mark.parametrize("make", [tiny_llama, tiny_neox])
def test_it_has_the_targets_embedding_and_head_and_trains_all_else(make):
    target = make(3, seed=1)
    draft, layers = make_draft(target, settings(feed_forward=24))
    assert layers == []
    assert torch.equal(draft.get_input_embeddings().weight, target.get_input_embeddings().weight)
    assert torch.equal(draft.get_output_embeddings().weight, target.get_output_embeddings().weight)
    frozen = {name for name, weight in draft.named_parameters() if not weight.requires_grad}
    assert frozen == {"model.embed_tokens.weight", "lm_head.weight"}
    assert draft.config.intermediate_size == 24
    assert draft.model.fc.in_features == 2 * 32


def test_equal_seeds_make_equal_drafts():
    target = tiny_llama(3, seed=1)
    one, same, other = (make_draft(target, settings(seed=seed))[0].state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["model.fc.weight"], other["model.fc.weight"])


@pytest.mark.parametrize("layers", [[], [0, 1], [2, 1], [1, 1], [4]])
def test_layers_that_the_target_has_not_are_named(layers, tmp_path):
    target = tiny_llama(3, seed=1)
    wrong = settings(hidden_states=layers)
    with pytest.raises(ModelError, match=r"hidden_states must be .* from 1 to 3 .*, not \["):
        check_draft(save(target, tmp_path), wrong)


def test_a_head_with_a_bias_cannot_be_shared():
    target = tiny_llama(3, seed=1)
    target.lm_head = torch.nn.Linear(32, 257)
    with pytest.raises(ModelError, match="cannot read the hidden states of LlamaForCausalLM"):
        make_draft(target, settings())


def test_an_existing_draft_is_what_it_is():
    with pytest.raises(ValidationError, match="hidden_states is of a new draft"):
        settings(draft="some")
    with pytest.raises(ValidationError, match="layers are of a draft cut from the target"):
        settings(layers=[0, 1])
    with pytest.raises(ValidationError, match="activation_checkpointing is between layers"):
        settings(activation_checkpointing=True)


def tied_neox(layers, seed):
    target = tiny_neox(layers, seed)
    target.config.tie_word_embeddings = True
    target.tie_weights()
    return target


@pytest.mark.parametrize("make", [tiny_llama, tiny_neox, tied_neox])
def test_its_slim_form_takes_embedding_and_head_from_the_target_whatever_that_calls_them(make, tmp_path):
    base = save(make(3, seed=1), tmp_path / "target")
    draft, layers = make_draft(load_causal_lm(base), settings())
    save_cut(tmp_path / "slim", draft, Cut(base, fingerprint(base), layers, None, [1, 3]))
    kept = dict(read_tensors(tmp_path / "slim"))
    assert not any("embed" in name or "lm_head" in name for name in kept)
    again = load_causal_lm(str(tmp_path / "slim"))
    states = probe_inputs(draft, 9)
    ids = torch.arange(9)[None]
    assert torch.equal(again(ids, **states).logits, draft(ids, **states).logits)


def test_a_config_that_does_not_fit_its_tensors_is_said_in_one_line(tmp_path):
    base = save(tiny_llama(3, seed=1), tmp_path / "target")
    draft = save(make_draft(load_causal_lm(base), settings())[0], tmp_path / "draft")
    told = json.loads((tmp_path / "draft" / "config.json").read_text())
    for changes in ({"target_layers": [1]}, {"intermediate_size": 24}):
        (tmp_path / "draft" / "config.json").write_text(json.dumps({**told, **changes}))
        with pytest.raises(ModelError, match=r"of other shapes than its config\.json says"):
            load_causal_lm(draft)
