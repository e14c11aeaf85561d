"""Tiny models, and replay samples made from a tiny target's true distributions."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hotdraft.pipeline.replay.sample import NOT_DRAFTED, ReplaySample

VOCABULARY = 64
TOKENS = 24
"""Of an answer."""
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
    """Requests of 4 to 8 prompt and `TOKENS` output tokens, sampled from `target` at temperature 1.

    `permutation` [V] renames the tokens of the logged distributions, which makes them false.
    """
    answers = sampled(target, count, tokens, torch.Generator().manual_seed(seed))
    samples = []
    for index, (ids, logprobs) in enumerate(answers):
        length = len(ids) - TOKENS
        top, top_ids = logprobs.topk(top_k)
        tail = (1 - top.exp().sum(-1)).clamp_min(1e-9).log()
        names = top_ids.numpy().astype(np.int32)
        samples.append(
            ReplaySample(
                request_id=f"{prefix}{index}",
                created_at=float(index),
                domain=domain,
                temperature=temperature,
                prompt_ids=ids[:length].numpy().astype(np.int32),
                output_ids=ids[length:].numpy().astype(np.int32),
                target_top_ids=names if permutation is None else permutation[names].astype(np.int32),
                target_top_logprobs=top.numpy().astype(np.float16),
                target_tail_logprob=tail.numpy(),
                drafted_ids=np.where(np.arange(TOKENS) % 2, NOT_DRAFTED, 1).astype(np.int32),
                accepted=np.arange(TOKENS) % 4 == 0,
                draft_versions=np.full(TOKENS, UNKNOWN_DRAFT, np.int32),
            )
        )
    return samples


def sampled(
    target: LlamaForCausalLM, count: int, tokens: range, generator: torch.Generator
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Prompt and answer of each request, and the target's log-probs [TOKENS, V] of the answer's positions.

    Each request has its own noise: the answers are those that it would get alone.
    """
    lengths = 4 + torch.arange(count) % 5
    ids = torch.zeros(count, int(lengths.max()) + TOKENS, dtype=torch.long)
    noise = torch.empty(count, TOKENS, target.vocab_size)
    for row, length in enumerate(lengths.tolist()):
        ids[row, :length] = torch.randint(tokens.start, tokens.stop, (length,), generator=generator)
        for step in range(TOKENS):
            noise[row, step].exponential_(generator=generator)
    rows = torch.arange(count)
    logits = torch.empty(count, TOKENS, target.vocab_size)
    for step in range(TOKENS):  # what stands behind a row's end does not change what is said there
        ends = lengths + step
        logits[:, step] = target(ids[:, : int(ends.max())]).logits[rows, ends - 1]
        ids[rows, ends] = (logits[:, step].softmax(-1) / noise[:, step]).argmax(-1)
    logprobs = logits.log_softmax(-1)
    return [(ids[row, : lengths[row] + TOKENS], logprobs[row]) for row in range(count)]


@pytest.fixture
def make_llama() -> Callable[..., LlamaForCausalLM]:
    return tiny_llama


@pytest.fixture
def serve() -> Callable[..., list[ReplaySample]]:
    return served_samples
