"""The pair's files and sizes: what the peers load, and how many bytes decoding reads."""

import shutil
from pathlib import Path

import torch

from hotdraft.pipeline.models.loading import (
    fingerprint,
    load_causal_lm,
    load_config_of,
    load_tokenizer,
    read_tensors,
)
from hotdraft.pipeline.models.names import cache_folder, local_folder, read_cut

BENCH_FOLDER = "bench"


def complete_folder(name: str, dtype: torch.dtype) -> Path:
    """A folder that other engines can load: the model's own, or for a cut draft a complete copy in the cache."""
    folder = local_folder(name)
    cut = read_cut(folder)
    if cut is None:
        return folder
    kind = str(dtype).removeprefix("torch.")
    complete = cache_folder() / BENCH_FOLDER / f"{cut.base_fingerprint[:8]}-{fingerprint(name)[:8]}-{kind}"
    if not complete.is_dir():
        partial = complete.with_name(complete.name + ".tmp")
        shutil.rmtree(partial, ignore_errors=True)
        load_causal_lm(name, dtype=dtype).save_pretrained(partial)
        load_tokenizer(name).save_pretrained(partial)
        partial.rename(complete)
    return complete


def stored_bytes(name: str, dtype: torch.dtype) -> int:
    """Bytes of a model's own tensors in `dtype`; a cut draft does not own what its target has."""
    return dtype.itemsize * sum(tensor.numel() for _, tensor in read_tensors(local_folder(name)))


def bytes_per_step(target: str, dtype: torch.dtype) -> int:
    """Bytes a plain step reads: all weights, of an untied input embedding only a row, which is left out."""
    config = load_config_of(target).get_text_config()
    return stored_bytes(target, dtype) - (0 if config.tie_word_embeddings else embedding_bytes(target, dtype))


def embedding_bytes(name: str, dtype: torch.dtype) -> int:
    """Of the table that tokens are looked up in."""
    config = load_config_of(name).get_text_config()
    return dtype.itemsize * int(config.vocab_size * config.hidden_size)


def kv_bytes_per_token(name: str, dtype: torch.dtype) -> int:
    """Bytes of the keys and values of one position in all layers."""
    config = load_config_of(name).get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * head_size * dtype.itemsize
