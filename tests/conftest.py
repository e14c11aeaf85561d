"""Tiny random models on disk, as a user would name them in a configuration."""

import copy
import os
import random
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.store.connection import open_client

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start, beside those of another worker

CHAT_TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(autouse=True)
def _alike() -> None:
    """Every test draws what it drew before, whatever ran ahead of it, and computes in one thread."""
    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes as tokens, with one end-of-text token."""
    vocabulary = {char: index for index, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary["<eos>"] = len(vocabulary)
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", chat_template=CHAT_TEMPLATE)


def tiny_llama(layers: int, seed: int, vocab_size: int = 257) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=256,
    )
    return LlamaForCausalLM(config).eval()


@torch.no_grad()
def disturbed(target: LlamaForCausalLM, amount: float = 0.1) -> LlamaForCausalLM:
    """A draft that a LoRA of rank 1 on two kinds of layers would turn into the target."""
    draft = copy.deepcopy(target)
    torch.manual_seed(3)
    for name, weight in draft.named_parameters():
        if "down_proj" in name or "o_proj" in name:
            weight.add_(amount * torch.randn(weight.shape[0], 1) @ torch.randn(1, weight.shape[1]))
    return draft


def tiny_neox(layers: int, seed: int) -> GPTNeoXForCausalLM:
    torch.manual_seed(seed)
    config = GPTNeoXConfig(
        vocab_size=257,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=512,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=256,
    )
    return GPTNeoXForCausalLM(config).eval()


def save(model: PreTrainedModel, folder: Path) -> str:
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(tiny_llama(layers=3, seed=1), tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def tiny_draft(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(tiny_llama(layers=1, seed=2), tmp_path_factory.mktemp("draft"))


@pytest.fixture(scope="session")
def tiny_neox_target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(tiny_neox(layers=2, seed=3), tmp_path_factory.mktemp("neox"))


@pytest.fixture(scope="session")
def empty_mlflow_db(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A migrated SQLite store to copy, one for all workers: making it takes seconds."""
    folder = tmp_path_factory.getbasetemp()
    run_dir = (folder if worker_id == "master" else folder.parent) / "mlflow"
    open_client(HotdraftConfig(target="tiny", run_dir=run_dir))
    return run_dir / "mlflow.db"
