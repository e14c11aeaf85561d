"""Presence and frequency penalties, as OpenAI defines them, over what a request has answered so far.

Target and draft are penalised by the same counts: at each position of a round those of the committed
answer and of the tokens drafted before it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from hotdraft.serving.sampling.logits import SamplingBatch


def count_tokens(token_ids: Tensor, start: Tensor, end: Tensor, vocab_size: int) -> Tensor:
    """How often each token stands at positions start..end-1: float32 [B, V].

    Shapes: token_ids int64 [B, L], start and end [B, 1].
    """
    position = torch.arange(token_ids.shape[1], device=token_ids.device)
    counted = ((position >= start) & (position < end)).float()
    return counted.new_zeros(len(token_ids), vocab_size).scatter_add_(1, token_ids, counted)


def count_drafted(counts: Tensor, drafted_ids: Tensor) -> Tensor:
    """Counts [B, k+1, V] before each position of a round and after its last, from those at its start [B, V].

    `drafted_ids` is int64 [B, k].
    """
    drafted = F.one_hot(drafted_ids, counts.shape[-1]).to(counts.dtype)
    return torch.cat([counts[:, None], drafted], 1).cumsum(1)


def penalise(logits: Tensor, counts: Tensor, sampling: SamplingBatch) -> Tensor:
    """Float32 logits [B, T, N] less the penalties of tokens that came `counts` [B, T, N] times."""
    penalty = sampling.frequency_penalty[..., None] * counts
    return logits - penalty - sampling.presence_penalty[..., None] * (counts > 0)
