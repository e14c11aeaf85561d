"""A Hugging Face tokenizer as llama.cpp reads it from a GGUF file."""

import json
from pathlib import Path
from typing import Any

import gguf

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
REST = "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
PRE_TOKENIZERS = {
    (False, None): "gpt-2",
    (True, None): "smollm",
    (False, f"{CONTRACTIONS}\\p{{N}}{REST}"): "qwen2",
    (False, f"{CONTRACTIONS}\\p{{N}}{{1,3}}{REST}"): "llama-bpe",
}
"""llama.cpp's names for how a text is split before its bytes are merged: each digit alone or not, and by which
expression, None being GPT-2's."""


def write_tokenizer(writer: gguf.GGUFWriter, size: int, *, folder: Path) -> None:
    """Add the byte-level BPE tokenizer of the model in `folder`, whose vocabulary has `size` tokens.

    Raises `ValueError` for another kind of tokenizer, and for one that llama.cpp has no name for.
    """
    told = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    if told["model"]["type"] != "BPE" or told["model"].get("byte_fallback"):
        raise ValueError("only byte-level BPE tokenizers can be written as GGUF")
    texts = [f"[PAD{token_id}]" for token_id in range(size)]
    kinds = [gguf.TokenType.UNUSED] * size
    for text, token_id in told["model"]["vocab"].items():
        texts[token_id], kinds[token_id] = text, gguf.TokenType.NORMAL
    for added in told["added_tokens"]:
        texts[added["id"]] = added["content"]
        kinds[added["id"]] = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_pre_tokenizer(told["pre_tokenizer"]))
    writer.add_token_list(texts)
    writer.add_token_types(kinds)
    gguf.SpecialVocab(folder, load_merges=True, n_vocab=size).add_to_gguf(writer, quiet=True)


def _pre_tokenizer(told: dict[str, Any]) -> str:
    parts = told["pretokenizers"] if told["type"] == "Sequence" else [told]
    by_kind = {part["type"]: part for part in parts}
    digits = bool(by_kind.get("Digits", {}).get("individual_digits"))
    expression = by_kind.get("Split", {}).get("pattern", {}).get("Regex")
    known = PRE_TOKENIZERS.get((digits, expression))
    if known is None or not set(by_kind) <= {"ByteLevel", "Digits", "Split"}:
        raise ValueError(f"llama.cpp has no name for a tokenizer that splits texts by {json.dumps(told)}")
    return known
