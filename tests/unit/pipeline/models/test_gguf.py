"""A model written as GGUF is the same model, with the same tokenizer, when it is read again."""

import json
from functools import partial
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast

from hotdraft.pipeline.models.gguf_file import read_tensors, write_gguf
from hotdraft.pipeline.models.gguf_vocabulary import CONTRACTIONS, PRE_TOKENIZERS, REST, write_tokenizer
from tests.models import tiny_llama

SIZE = 400
TEXT = "It's 2026, and the draft's 12 guesses weren't all wrong:\n\n\t42 of 1234 were.  So what?"


def by_bytes(*, use_regex: bool) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def split_by(expression: str) -> pre_tokenizers.PreTokenizer:
    parts = [pre_tokenizers.Split(Regex(expression), "isolated"), by_bytes(use_regex=False)]
    return pre_tokenizers.Sequence(parts)


KINDS = {
    "gpt-2": by_bytes(use_regex=True),
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(True), by_bytes(use_regex=True)]),
    "qwen2": split_by(f"{CONTRACTIONS}\\p{{N}}{REST}"),
    "llama-bpe": split_by(f"{CONTRACTIONS}\\p{{N}}{{1,3}}{REST}"),
}


def save_tokenizer(folder: Path, pre_tokenizer: pre_tokenizers.PreTokenizer) -> None:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizer, decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE - 10, initial_alphabet=alphabet, special_tokens=["<eos>"], show_progress=False
    )
    backend.train_from_iterator([TEXT] * 3, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")
    tokenizer.chat_template = "{{ messages[0].content }}<eos>"
    tokenizer.save_pretrained(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Llama with grouped heads and more rows than its tokenizer has tokens."""
    tiny_llama(2, 0, SIZE, head_size=16).save_pretrained(tmp_path / "model")
    save_tokenizer(tmp_path / "model", KINDS["gpt-2"])
    return tmp_path / "model"


def written(folder: Path, dtype: str = "float32") -> Path:
    path = folder.with_suffix(".gguf")
    write_gguf(folder, path, dtype, partial(write_tokenizer, folder=folder))
    return path


def test_gguf_holds_the_same_model(folder: Path) -> None:
    path = written(folder)
    original = AutoModelForCausalLM.from_pretrained(folder)
    read_back = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    ids = torch.tensor([[7, 7, 1, 3, 8]])
    with torch.inference_mode():
        torch.testing.assert_close(read_back(ids).logits, original(ids).logits, rtol=1e-4, atol=1e-4)


def test_tensors_of_bfloat16_are_read_exactly(folder: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "half")
    found = dict(read_tensors(tmp_path / "half"))
    assert found.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(found[name], tensor.float().numpy())


def test_bfloat16_stays_bfloat16(folder: Path) -> None:
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(folder)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(written(folder, "bfloat16")).tensors}
    assert tensors["token_embd.weight"].tensor_type == gguf.GGMLQuantizationType.BF16
    stored = gguf.dequantize(tensors["token_embd.weight"].data, gguf.GGMLQuantizationType.BF16)
    np.testing.assert_array_equal(stored, dict(read_tensors(folder))["model.embed_tokens.weight"])


@pytest.mark.parametrize("kind", KINDS)
def test_its_tokenizer_is_told_by_llama_cpps_name(folder: Path, kind: str) -> None:
    save_tokenizer(folder, KINDS[kind])
    fields = gguf.GGUFReader(written(folder)).fields
    told = {name: field.contents() for name, field in fields.items()}
    assert told["tokenizer.ggml.pre"] == kind
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert told["tokenizer.ggml.tokens"][: len(tokenizer)] == tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    assert told["tokenizer.ggml.tokens"][-1] == f"[PAD{SIZE - 1}]"
    assert told["tokenizer.ggml.eos_token_id"] == tokenizer.eos_token_id
    assert told["tokenizer.chat_template"] == tokenizer.chat_template
    merges = json.loads((folder / "tokenizer.json").read_text())["model"]["merges"]
    assert told["tokenizer.ggml.merges"] == [" ".join(merge) for merge in merges]


def test_every_name_is_tried() -> None:
    assert set(KINDS) == set(PRE_TOKENIZERS.values())


def test_a_text_has_the_same_tokens(folder: Path) -> None:
    path = written(folder)
    original = AutoTokenizer.from_pretrained(folder)
    read_back = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    assert read_back(TEXT)["input_ids"] == original(TEXT)["input_ids"]


def test_what_would_come_out_wrong_is_refused(folder: Path) -> None:
    save_tokenizer(folder, split_by("[aeiou]+"))
    with pytest.raises(ValueError, match=r"no name for .*\[aeiou\]\+"):
        written(folder)
    save_tokenizer(folder, KINDS["gpt-2"])
    scaled = LlamaConfig.from_pretrained(folder)
    scaled.rope_parameters = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}
    scaled.save_pretrained(folder)
    with pytest.raises(ValueError, match="rope scaling"):
        written(folder)
