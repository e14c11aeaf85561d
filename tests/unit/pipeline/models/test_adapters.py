import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from hotdraft.pipeline.models.adapter_folder import (
    AdapterBase,
    AdapterCard,
    AdapterError,
    frozen_weight,
    load_adapter,
    merged_weights,
    read_card,
    write_card,
    write_probe,
)
from hotdraft.pipeline.models.draft_vocabulary import save_vocabulary

CARD = AdapterCard(
    base_fingerprint="f" * 64,
    quantization="none",
    rank=4,
    alpha=8,
    target_modules=["down_proj", "q_proj"],
    parent_version=2,
    requests=3,
    tokens=40,
    domains={"a": 3},
    created_at=1.0,
)
KEY = "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight"


@pytest.fixture
def base() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def trained(base: LlamaForCausalLM) -> PeftModel:
    config = LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules=CARD.target_modules)
    twin = LlamaForCausalLM(base.config)
    twin.load_state_dict(base.state_dict())
    model = get_peft_model(twin.eval(), config)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


@pytest.fixture
def folder(trained: PeftModel, tmp_path: Path) -> Path:
    trained.save_pretrained(str(tmp_path), save_embedding_layers=False)
    write_card(tmp_path, CARD)
    ids = torch.arange(6)[None]
    with torch.no_grad():
        write_probe(tmp_path, ids, trained(input_ids=ids).logits[0, -3:])
    return tmp_path


def load(folder: Path, base: LlamaForCausalLM):
    return load_adapter(folder, AdapterBase.of(base, "f" * 64))


def test_merged_weights_are_those_of_peft(folder, base, trained):
    adapter = load(folder, base)
    merged = dict(merged_weights(base.state_dict(), adapter))
    assert len(merged) == 4
    expected = trained.merge_and_unload().state_dict()
    for name, weight in merged.items():
        torch.testing.assert_close(weight, expected[name])
        assert not torch.allclose(weight, base.state_dict()[name])


def test_the_probe_shows_what_the_merged_draft_computes(folder, base):
    adapter = load(folder, base)
    base.load_state_dict(dict(merged_weights(base.state_dict(), adapter)), strict=False)
    with torch.no_grad():
        logits = base(input_ids=adapter.probe_ids).logits[0, -3:]
    torch.testing.assert_close(logits, adapter.probe_logits)


def test_an_nf4_base_merges_into_what_nf4_kept_of_it(folder, base):
    write_card(folder, replace(CARD, quantization="nf4"))
    adapter = load(folder, base)
    name = "model.layers.0.self_attn.q_proj.weight"
    weight = base.state_dict()[name]
    frozen = frozen_weight(weight, "nf4")
    assert not torch.equal(frozen, weight)
    assert (frozen - weight).abs().max() < 0.2 * weight.abs().max()
    lora_a, lora_b = adapter.lora[name.removesuffix(".weight")]
    torch.testing.assert_close(dict(merged_weights(base.state_dict(), adapter))[name], frozen + 2 * lora_b @ lora_a)


def test_the_ranking_comes_with_the_adapter_where_it_has_one(folder, base):
    assert load(folder, base).vocabulary is None
    save_vocabulary(folder, torch.tensor([7, 3, 31]))
    vocabulary = load(folder, base).vocabulary
    assert vocabulary is not None
    assert vocabulary.tolist() == [7, 3, 31]


def test_the_card_comes_back(folder):
    assert read_card(folder) == CARD


def edit_weights(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "adapter_model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)

    return edit


def edit_probe(**tensors: Tensor) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "probe.safetensors"
        save_file({**load_file(path), **tensors}, path)

    return edit


def edit_json(name: str, **values: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return edit


edit_card = partial(edit_json, "hotdraft_adapter.json")
edit_config = partial(edit_json, "adapter_config.json")


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def spoil(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(b"{nonsense")


def nest(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(100_000 * "[")


def replace_by_folder(name: str) -> Callable[[Path], None]:
    def replace_it(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return replace_it


def edit_rank(rank: int) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        edit_card(rank=rank)(folder)
        edit_config(r=rank)(folder)

    return edit


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (edit_card(base_fingerprint="0" * 64), "another base: 000000000000"),
        (edit_card(rank=8), "r is 4, the card says 8"),
        (edit_rank(8), r"lora_A has shape \(4, 96\), expected \(8, 96\)"),
        (edit_card(alpha=99), "lora_alpha is 8, the card says 99"),
        (edit_config(use_rslora=True), "use_rslora is set, of which nothing is known here"),
        (edit_config(alpha_pattern={"q_proj": 64}), "alpha_pattern is set, of which nothing is known here"),
        (edit_card(quantization="int3"), "quantization: Input should be 'none' or 'nf4'"),
        (edit_card(alpha=None), "alpha: Input should be a valid integer"),
        (edit_card(alpha="8"), "alpha: Input should be a valid integer"),
        (edit_card(alpha=10**400), "alpha: Input should be less than 2147483648"),
        (edit_card(rank=0), "rank: Input should be greater than or equal to 1"),
        (edit_card(target_modules=None), "target_modules: Input should be a valid array"),
        (edit_card(target_modules=["q_proj", 1]), "target_modules.1: Input should be a valid string"),
        (edit_card(domains={"a": "many"}), "domains.a: Input should be a valid integer"),
        (edit_card(target_modules=["c_attn"]), "target modules"),
        (edit_card(surprise=1), "wrong keys"),
        (edit_weights(lambda t: t.pop(KEY)), f"misses 1 keys, such as {KEY}"),
        (edit_weights(lambda t: t.update(extra=torch.zeros(1))), "unexpected 1 keys, such as extra"),
        (edit_weights(lambda t: t.update({KEY: torch.zeros(4, 95)})), r"shape \(4, 95\), expected \(4, 96\)"),
        (edit_weights(lambda t: t[KEY].fill_(torch.nan)), "not finite"),
        (
            edit_weights(lambda t: t.update({KEY: t[KEY].to(torch.float8_e4m3fn)})),
            "type float8_e4m3fn, allowed are",
        ),
        (edit_weights(lambda t: t.update({KEY: t[KEY].int()})), "lora_A has type int32"),
        (edit_probe(logits=torch.zeros(3, 31)), r"logits have shape \(3, 31\), expected up to \(6, 32\)"),
        (edit_probe(logits=torch.zeros(7, 32)), r"logits have shape \(7, 32\)"),
        (edit_probe(logits=torch.full((3, 32), torch.inf)), "logits are not finite"),
        (edit_probe(input_ids=torch.full((1, 6), 32)), "ids below 32"),
        (edit_probe(input_ids=torch.zeros(1, 6)), "ids below 32"),
        (edit_probe(input_ids=torch.zeros(1, 0, dtype=torch.int64)), "ids below 32"),
        (edit_probe(logits=torch.zeros(3, 32, dtype=torch.float8_e5m2)), "logits has type float8_e5m2"),
        (lambda folder: save_vocabulary(folder, torch.tensor([32])), "ids range from 32 to 32"),
        (spoil("draft_vocabulary.safetensors"), "not a readable safetensors"),
        (remove("adapter_model.safetensors"), "adapter_model.safetensors is missing"),
        (remove("probe.safetensors"), "probe.safetensors is missing"),
        (remove("hotdraft_adapter.json"), "hotdraft_adapter.json is missing"),
        (remove("adapter_config.json"), "adapter_config.json is missing"),
        (spoil("adapter_model.safetensors"), "not a readable safetensors"),
        (spoil("hotdraft_adapter.json"), "not valid JSON"),
        (nest("hotdraft_adapter.json"), "not valid JSON"),
        (replace_by_folder("adapter_config.json"), "adapter_config.json is missing"),
        (replace_by_folder("probe.safetensors"), "probe.safetensors is missing"),
    ],
)
def test_a_damaged_adapter_is_refused_with_its_fault(folder, base, damage, message):
    load(folder, base)
    damage(folder)
    with pytest.raises(AdapterError, match=message):
        load(folder, base)


@pytest.mark.parametrize("rank", [1, 6])
def test_any_rank_is_read_and_merged(base, rank, tmp_path):
    config = LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=8, target_modules=CARD.target_modules)
    twin = LlamaForCausalLM(base.config)
    twin.load_state_dict(base.state_dict())
    trained = get_peft_model(twin.eval(), config)
    for parameter in trained.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.1)
    trained.save_pretrained(str(tmp_path), save_embedding_layers=False)
    write_card(tmp_path, replace(CARD, rank=rank))
    write_probe(tmp_path, torch.arange(6)[None], torch.zeros(3, 32))
    merged = dict(merged_weights(base.state_dict(), load(tmp_path, base)))
    expected = trained.merge_and_unload().state_dict()
    for name, weight in merged.items():
        torch.testing.assert_close(weight, expected[name])


def test_a_sum_that_is_too_large_for_the_drafts_type_is_refused(folder, base):
    edit_weights(lambda tensors: tensors[KEY].fill_(1e30))(folder)
    weights = {name: weight.half() for name, weight in base.state_dict().items()}
    with pytest.raises(AdapterError, match="down_proj with the adapter in it has values that are not finite"):
        dict(merged_weights(weights, load(folder, base)))


def test_a_base_of_another_shape_is_refused(folder):
    other = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32, hidden_size=32, intermediate_size=24, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1,
        )
    )  # fmt: skip
    with pytest.raises(AdapterError, match="shape"):
        load(folder, other)
