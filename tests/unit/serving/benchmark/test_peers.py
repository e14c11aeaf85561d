"""The foreign engines against transformers on tiny models; each is skipped where its package is absent."""

import importlib
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hotdraft.serving.benchmark.engines.conversion import converted
from hotdraft.serving.benchmark.engines.engine import PLAIN, EngineSettings, Mode, Speculation

PROMPTS = [[5, 9, 2], [7, 7, 1, 3, 8], [40, 2], [11, 60, 33, 21]]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Folders of two float32 Llamas with grouped heads: a target, and a draft that often agrees with it."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        tie_word_embeddings=False,
    )
    target = LlamaForCausalLM(config).eval()
    target.save_pretrained(tmp_path / "target")
    with torch.no_grad():
        target.lm_head.weight.add_(0.02 * torch.randn_like(target.lm_head.weight))
    target.save_pretrained(tmp_path / "draft")
    for folder in ("target", "draft"):
        byte_tokenizer().save_pretrained(tmp_path / folder)
    return tmp_path / "target", tmp_path / "draft"


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Unused by the benchmark, which hands over token ids, but exporters insist on one."""
    alphabet = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<eos>"]
    backend = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")


def settings(pair: tuple[Path, Path], cache_folder: Path) -> EngineSettings:
    return EngineSettings(*pair, "float32", 1, cache_folder, concurrency=(1, 2), max_length=64)


def greedy(folder: Path, prompt: list[int], count: int) -> list[int]:
    """By full forwards, without a cache."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def test_conversion_is_kept_until_the_model_changes(pair: tuple[Path, Path], tmp_path: Path) -> None:
    calls: list[Path] = []

    def convert(source: Path, destination: Path) -> None:
        calls.append(source)
        destination.write_text("x")

    first = converted(pair[0], tmp_path / "cache", "txt", convert)
    assert converted(pair[0], tmp_path / "cache", "txt", convert) == first
    assert converted(pair[1], tmp_path / "cache", "txt", convert) != first
    assert calls == list(pair)


def test_failed_conversion_leaves_nothing_behind(pair: tuple[Path, Path], tmp_path: Path) -> None:
    def fail(source: Path, destination: Path) -> None:
        destination.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        converted(pair[0], tmp_path / "cache", "txt", fail)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "name", "packages"),
    [
        ("hotdraft.serving.benchmark.engines.peers_llamacpp", "LlamaCppEngine", ["xllamacpp"]),
        (
            "hotdraft.serving.benchmark.engines.peers_openvino",
            "OpenVinoEngine",
            ["openvino_genai", "optimum.intel"],
        ),
    ],
)
def test_peer_decodes_what_transformers_decodes(
    module: str, name: str, packages: list[str], pair: tuple[Path, Path], tmp_path: Path
) -> None:
    for package in packages:
        pytest.importorskip(package)
    engine = getattr(importlib.import_module(module), name)(settings(pair, tmp_path / "cache"))
    expected = [greedy(pair[0], prompt, 12) for prompt in PROMPTS]
    for concurrency in (1, 2):
        for mode in (PLAIN, Mode("speculative", 3)):
            assert mode in engine.modes(concurrency)
            result = engine.run(mode, PROMPTS, 12, concurrency)
            assert result.outputs == expected
            assert [len(times) for times in result.token_times] == [12] * len(PROMPTS)
            assert all(times == sorted(times) and times[-1] <= result.seconds for times in result.token_times)
    assert isinstance(result.speculation, Speculation)
    assert 0 < result.speculation.accepted < result.speculation.drafted <= 3 * result.speculation.rounds


def test_openvino_counts_rounds_from_steps() -> None:
    pytest.importorskip("openvino_genai")
    from hotdraft.serving.benchmark.engines.peers_openvino import _Request, _speculation

    request = _Request([1])
    request.steps = [1, 3, 1, 2, 1]  # 8 tokens; before each round 7, 4, 3, 1 are left
    assert _speculation([request], 8, 2) == Speculation(rounds=4, drafted=2 + 2 + 2 + 0, accepted=3)
