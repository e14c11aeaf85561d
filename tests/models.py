"""Tiny random models and their tokenizer, of bytes."""

import copy
from pathlib import Path

import torch
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from hotdraft.pipeline.models.byte_tokenizer import CHAT_TEMPLATE as CHAT_TEMPLATE
from hotdraft.pipeline.models.byte_tokenizer import byte_tokenizer as tiny_tokenizer


def tiny_llama(
    layers: int, seed: int, vocab_size: int = 257, *, heads: int = 4, head_size: int = 8
) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=heads * head_size,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=heads,
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
