"""Presence and frequency penalties, as OpenAI defines them, over what a request has answered so far; the repetition
penalty, over its prompt as well; biases.

Target and draft are penalised by the same counts: at each position of a round those of the committed
answer and of the tokens drafted before it.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hotdraft.serving.sampling.logits import SamplingBatch

IN_PROMPT = 0.5
"""What a token of the prompt counts: less than once, which only the repetition penalty heeds."""


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
        """`counts`, if some row is penalised by them; with `IN_PROMPT`, where some row heeds that."""
        if not sampling.any_counted:
            return None
        counts = self.counts()
        if sampling.any_repetition:
            prompt = AnswerTokens(self.token_ids, torch.zeros_like(self.start), self.start, self.vocab_size)
            counts += IN_PROMPT * prompt.counts().clamp_max(1)
        return counts

    def counts(self) -> Tensor:
        """How often each token came: float32 [B, V]."""
        position = torch.arange(self.token_ids.shape[1], device=self.token_ids.device)
        counted = ((position >= self.start) & (position < self.end)).float()
        return counted.new_zeros(len(counted), self.vocab_size).scatter_add_(1, self.token_ids, counted)


def penalise(
    logits: Tensor,
    positions: Tensor,
    counts: Tensor | None,
    sampling: SamplingBatch,
    drafted_ids: Tensor | None = None,
    vocabulary: Tensor | None = None,
) -> Tensor:
    """Float32 logits [B, T, N] with their bias, less the penalties of tokens that came `counts` [B, N] times.

    `positions` int64 [B, T] are those that the tokens will have. With `drafted_ids` [B, T-1] one more of them has
    come at each position after the first. `vocabulary` [N], ascending, names the tokens, if they are not all.
    Without `counts` there are biases only.
    """
    if sampling.biased is not None:
        logits = _with_biases(logits, positions, sampling.biased, vocabulary)
    if counts is None:
        return logits
    penalised = _penalised(logits, counts[:, None], sampling)
    if drafted_ids is not None:
        at_drafted = drafted_ids[:, None].expand(-1, logits.shape[1], -1)
        counts_there = _count_drafted(counts, drafted_ids)
        penalised.scatter_(2, at_drafted, _penalised(logits.gather(2, at_drafted), counts_there, sampling))
    return penalised


def _with_biases(
    logits: Tensor, positions: Tensor, biased: tuple[Tensor, Tensor, Tensor, Tensor], vocabulary: Tensor | None
) -> Tensor:
    rows, token_ids, biases, until = biased
    if vocabulary is not None:
        columns = torch.searchsorted(vocabulary, token_ids).clamp_max(len(vocabulary) - 1)
        token_ids, biases = columns, torch.where(vocabulary[columns] == token_ids, biases, 0.0)
    at = (rows[:, None], torch.arange(logits.shape[1], device=logits.device), token_ids[:, None])
    added = torch.where(positions[rows] < until[:, None], biases[:, None], 0.0)
    return logits.index_put(at, added, accumulate=True)


def _penalised(logits: Tensor, counts: Tensor, sampling: SamplingBatch) -> Tensor:
    """Logits [B, T, N] of tokens that came `counts` [B, T or 1, N] times."""
    frequency, presence = sampling.frequency_penalty[..., None], sampling.presence_penalty[..., None]
    if sampling.any_repetition:
        repetition = sampling.repetition_penalty[..., None]
        less = torch.where(logits > 0, logits / repetition, logits * repetition)
        logits, counts = torch.where(counts > 0, less, logits), counts.floor()
    return logits - (frequency * counts + presence * counts.clamp_max(1))


def _count_drafted(counts: Tensor, drafted_ids: Tensor) -> Tensor:
    """How often each drafted token [B, k] came before each position of a round and after its last: [B, k+1, k]."""
    same = drafted_ids[:, :, None] == drafted_ids[:, None]
    return counts.gather(1, drafted_ids)[:, None] + F.pad(same.cumsum(1), (0, 0, 1, 0))
