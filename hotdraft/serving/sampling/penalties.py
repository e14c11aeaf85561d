"""Presence and frequency penalties, as OpenAI defines them, over what a request has answered so far; biases.

Target and draft are penalised by the same counts: at each position of a round those of the committed
answer and of the tokens drafted before it.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hotdraft.serving.sampling.logits import SamplingBatch


class AnswerTokens(NamedTuple):
    """What B rows have answered so far: their tokens at positions start..end-1."""

    token_ids: Tensor
    """int64 [B, L]."""
    start: Tensor
    """int64 [B, 1]."""
    end: Tensor
    """The same; where the next token comes."""
    vocab_size: int

    def penalised_counts(self, sampling: SamplingBatch) -> Tensor | None:
        """`counts`, if some row is penalised."""
        return self.counts() if sampling.any_penalised else None

    def counts(self) -> Tensor:
        """How often each token came: float32 [B, V]."""
        position = torch.arange(self.token_ids.shape[1], device=self.token_ids.device)
        counted = ((position >= self.start) & (position < self.end)).float()
        return counted.new_zeros(len(counted), self.vocab_size).scatter_add_(1, self.token_ids, counted)


def count_drafted(counts: Tensor, drafted_ids: Tensor) -> Tensor:
    """Counts [B, k+1, V] before each position of a round and after its last, from those at its start [B, V].

    `drafted_ids` is int64 [B, k].
    """
    drafted = F.one_hot(drafted_ids, counts.shape[-1]).to(counts.dtype)
    return torch.cat([counts[:, None], drafted], 1).cumsum(1)


def penalise(logits: Tensor, counts: Tensor, sampling: SamplingBatch, vocabulary: Tensor | None = None) -> Tensor:
    """Float32 logits [B, T, N] less the penalties of tokens that came `counts` [B, T, N] times, with their bias.

    `vocabulary` [N], ascending, names the tokens, if they are not all.
    """
    penalty = sampling.frequency_penalty[..., None] * counts
    penalised = logits - penalty - sampling.presence_penalty[..., None] * (counts > 0)
    if sampling.biased is not None:
        rows, token_ids, biases = sampling.biased
        if vocabulary is not None:
            columns = torch.searchsorted(vocabulary, token_ids).clamp_max(len(vocabulary) - 1)
            token_ids, biases = columns, torch.where(vocabulary[columns] == token_ids, biases, 0.0)
        positions = torch.arange(logits.shape[1], device=logits.device)
        at = (rows[:, None], positions, token_ids[:, None])
        penalised.index_put_(at, biases[:, None].expand(-1, len(positions)), accumulate=True)
    return penalised
