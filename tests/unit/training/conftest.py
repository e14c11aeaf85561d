"""Tiny models, and replay samples made from a tiny target's true distributions."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hotdraft.pipeline.replay.sample import NOT_DRAFTED, ReplaySample
from tests.conftest import disturbed

VOCABULARY = 64
UNKNOWN_DRAFT = 99
"""The version that drafted what these samples make up."""


def tiny_llama(seed: int, layers: int = 2, scale: float = 0.02) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        initializer_range=scale, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@torch.no_grad()
def served_samples(
    target: LlamaForCausalLM,
    count: int,
    *,
    domain: str = "d",
    prefix: str = "r",
    seed: int = 0,
    top_k: int = 16,
    tokens: range = range(VOCABULARY),
    temperature: float = 1.0,
    permutation: np.ndarray | None = None,
) -> list[ReplaySample]:
    """Requests of 4 to 8 prompt and 24 output tokens, sampled from `target` at temperature 1.

    `permutation` [V] renames the tokens of the logged distributions, which makes them false.
    """
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for index in range(count):
        length = 4 + index % 5
        low, high = tokens.start, tokens.stop
        ids = torch.randint(low, high, (1, length), generator=generator)
        for _ in range(24):
            probs = target(ids).logits[:, -1].softmax(-1)
            ids = torch.cat([ids, torch.multinomial(probs, 1, generator=generator)], 1)
        logprobs = target(ids).logits[0, length - 1 : -1].log_softmax(-1)
        top, top_ids = logprobs.topk(top_k)
        tail = (1 - top.exp().sum(-1)).clamp_min(1e-9).log()
        names = top_ids.numpy().astype(np.int32)
        samples.append(
            ReplaySample(
                request_id=f"{prefix}{index}",
                created_at=float(index),
                domain=domain,
                temperature=temperature,
                prompt_ids=ids[0, :length].numpy().astype(np.int32),
                output_ids=ids[0, length:].numpy().astype(np.int32),
                target_top_ids=names if permutation is None else permutation[names].astype(np.int32),
                target_top_logprobs=top.numpy().astype(np.float16),
                target_tail_logprob=tail.numpy(),
                drafted_ids=np.where(np.arange(24) % 2, NOT_DRAFTED, 1).astype(np.int32),
                accepted=np.arange(24) % 4 == 0,
                draft_versions=np.full(24, UNKNOWN_DRAFT, np.int32),
            )
        )
    return samples


@pytest.fixture
def make_llama() -> Callable[..., LlamaForCausalLM]:
    return tiny_llama


@pytest.fixture
def serve() -> Callable[..., list[ReplaySample]]:
    return served_samples


@pytest.fixture
def disturb() -> Callable[..., LlamaForCausalLM]:
    return disturbed
