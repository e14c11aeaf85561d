"""The answers of the small model at the size of a large one."""

from pathlib import Path

import pytest
import torch
from transformers import (
    AutoTokenizer,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from typer.testing import CliRunner

from hotdraft.cli import app
from hotdraft.pipeline.models.inflate import inflate, parse_size
from hotdraft.pipeline.models.loading import load_causal_lm
from hotdraft.pipeline.models.names import ModelError
from hotdraft.serving.benchmark.engines.engine import EngineSettings
from hotdraft.serving.benchmark.figures.report import inflated_models
from tests.models import save, tiny_llama

IDS = torch.arange(1, 200, 3)[None]
SIZES = {
    "vocab_size": 257,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": 256,
}


def mistral() -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None, tie_word_embeddings=False))


def qwen2() -> PreTrainedModel:
    """With biases that are not 0, and one matrix for embedding and head."""
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=True))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    return model


@pytest.mark.parametrize("make", [lambda: tiny_llama(3, seed=1), mistral, qwen2])
@pytest.mark.parametrize("parameters", [60_000, 150_000, 1_000_000])  # wider within layers, channels too, both much
@torch.no_grad()
def test_logits_are_those_of_the_small_model(make, parameters, tmp_path):
    torch.manual_seed(5)
    small = make().eval()
    for name, parameter in small.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 2)
    name = save(small, tmp_path / "small")
    found = inflate(name, parameters, tmp_path / "large")
    large = load_causal_lm(str(tmp_path / "large"))
    assert found == sum(parameter.numel() for parameter in large.parameters())
    assert found == pytest.approx(parameters, rel=0.15)
    assert large.config.num_hidden_layers >= small.config.num_hidden_layers
    torch.testing.assert_close(large(IDS).logits, small(IDS).logits, rtol=1e-3, atol=1e-3)
    assert AutoTokenizer.from_pretrained(tmp_path / "large").eos_token == "<eos>"


@torch.no_grad()
def test_norms_are_exact_in_bfloat16(tmp_path):
    """Stored in bfloat16 the weights are those of the small model, times powers of two."""
    small = tiny_llama(3, seed=1).bfloat16()
    torch.nn.init.uniform_(small.model.norm.weight, 0.5, 2)
    name = save(small, tmp_path / "small")
    inflate(name, 1_000_000, tmp_path / "large")
    large = load_causal_lm(str(tmp_path / "large"))
    torch.testing.assert_close(large(IDS).logits, load_causal_lm(name)(IDS).logits, rtol=1e-3, atol=1e-3)


def test_what_is_added_is_random_where_nothing_comes_of_it(tmp_path, tiny_target):
    """Zeros everywhere could be multiplied faster than weights."""
    inflate(tiny_target, 1_000_000, tmp_path / "large")
    layers = load_causal_lm(str(tmp_path / "large")).model.layers
    for module in (layers[-1].mlp.gate_proj, layers[-1].self_attn.q_proj, layers[0].mlp.up_proj):
        assert (module.weight != 0).float().mean() > 0.99


def test_the_command_and_what_a_report_says(tmp_path, tiny_target):
    out = tmp_path / "large"
    done = CliRunner().invoke(app, ["models", "inflate", tiny_target, "--to", "0.15m", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert f"parameters and the answers of {tiny_target}" in done.output
    assert "by weights that change" in (out / "README.md").read_text().replace("\n", " ")
    pair = EngineSettings(out, Path(tiny_target), "float32", 1, tmp_path, (1,), 64, tmp_path / "config.yaml")
    assert inflated_models(pair) == {"target": tiny_target}


@pytest.mark.parametrize("text", ["", "6", "b", "-1b", "0m", "6gb", "1e3m"])
def test_a_size_that_is_none(text):
    with pytest.raises(ModelError, match="allowed are millions and billions of parameters"):
        parse_size(text)


def test_sizes():
    assert (parse_size("6b"), parse_size("1.5B"), parse_size(" 500m ")) == (
        6_000_000_000,
        1_500_000_000,
        500_000_000,
    )


def test_what_cannot_be_inflated(tmp_path, tiny_target, tiny_neox_target):
    with pytest.raises(ModelError, match=r"is a 'gpt_neox' model; those of llama, mistral, qwen2 can be inflated"):
        inflate(tiny_neox_target, 1_000_000, tmp_path / "large")
    with pytest.raises(ModelError, match=r"44,\d\d\d parameters, and 10,000 were asked for: it only grows"):
        inflate(tiny_target, 10_000, tmp_path / "large")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ModelError, match="is not empty; a model is written to a new or empty folder"):
        inflate(tiny_target, 1_000_000, tmp_path / "full")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"]
