"""What the draft is taught, and what it would be worth: losses over logged target distributions."""

from typing import Any

import torch
from torch import Tensor

ROWS_PER_CHUNK = 64
"""Rows widened to float32 at a time: a chunk of a 50k vocabulary is 12 MB and stays near the cache."""


def forward_kl(draft_logits: Tensor, top_ids: Tensor, top_logprobs: Tensor, tail_logprob: Tensor) -> Tensor:
    r"""KL divergence from the target to the draft over the target's top K tokens and one tail bucket.

    .. math:: \sum_{k \in top} t_k \log\frac{t_k}{d_k} + t_{tail} \log\frac{t_{tail}}{d_{tail}}
              \qquad d_{tail} = \sum_{j \notin top} d_j

    Without the tail the sum is not a divergence: a draft could lower it by moving mass onto the top K
    in any proportion. By the log-sum inequality it is a lower bound of the KL over the vocabulary and
    equals it at K = V. Forward KL on target distributions is the objective of Online Speculative
    Decoding (Liu et al., 2024).

    Args:
        draft_logits: [N, V] in any float dtype; computed in float32 (float64 for float64).
        top_ids: int64 [N, K], distinct in a row.
        top_logprobs: [N, K] natural logs. Storage rounding is undone: top and tail are renormalised.
        tail_logprob: [N]; -inf is an empty tail.

    Returns:
        [N], nats; differentiable in `draft_logits`. No [N, V] tensor but the gradient is allocated.
    """
    target_top, target_tail = _normalised(top_logprobs, tail_logprob, _wide(draft_logits))
    return _BucketedKL.apply(draft_logits, top_ids, target_top, target_tail)


@torch.no_grad()
def expected_acceptance(
    draft_logits: Tensor, top_ids: Tensor, top_logprobs: Tensor, tail_logprob: Tensor, temperature: Tensor
) -> Tensor:
    r"""Chance [N] that one drafted token is accepted at each position.

    At `temperature` [N] 0 that is 1 where the likeliest tokens agree and 0 elsewhere. Above 0 it is the
    overlap :math:`\sum_{k \in top} \min(t_k, d_k)` at temperature 1 (Leviathan et al., 2023): a lower
    bound, as the tail's own overlap, at most the target's tail mass, is not counted.
    Shapes are those of `forward_kl`.
    """
    target_top, _ = _normalised(top_logprobs, tail_logprob, _wide(draft_logits))
    draft_top, _, _ = _draft_logprobs(draft_logits, top_ids)
    overlap = torch.minimum(target_top.exp(), draft_top.exp()).sum(-1)
    target_best = top_ids.gather(1, top_logprobs.argmax(-1, keepdim=True)).squeeze(1)
    agreement = (draft_logits.argmax(-1) == target_best).to(overlap.dtype)
    return torch.where(temperature == 0, agreement, overlap)


class _BucketedKL(torch.autograd.Function):
    """The closed-form gradient costs one pass over the vocabulary and never divides by the draft's
    tail: `d_k - t_k` on the top tokens, `(d_tail - t_tail) * softmax(logits outside the top)` elsewhere.
    """

    @staticmethod
    def forward(ctx: Any, draft_logits: Tensor, top_ids: Tensor, target_top: Tensor, target_tail: Tensor) -> Tensor:
        draft_top, draft_tail, tail_logits = _draft_logprobs(draft_logits, top_ids)
        ctx.save_for_backward(
            draft_logits, top_ids, draft_top.exp() - target_top.exp(),
            draft_tail.exp() - target_tail.exp(), tail_logits,
        )  # fmt: skip
        return _term(target_top, draft_top).sum(-1) + _term(target_tail, draft_tail)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None, None]:
        draft_logits, top_ids, top_gap, tail_gap, tail_logits = ctx.saved_tensors
        gradient = torch.empty_like(draft_logits)
        for start in range(0, len(draft_logits), ROWS_PER_CHUNK):
            rows = slice(start, start + ROWS_PER_CHUNK)
            shift = tail_logits[rows, None].nan_to_num(neginf=0.0)  # no tail: every entry is overwritten
            chunk = torch.sub(draft_logits[rows], shift).clamp_(max=0).exp_()
            chunk.mul_(tail_gap[rows, None]).scatter_(1, top_ids[rows], top_gap[rows])
            gradient[rows] = chunk.mul_(grad_output[rows, None])
        return gradient, None, None, None


def _draft_logprobs(draft_logits: Tensor, top_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs of the top tokens [N, K] and of the rest [N], and the rest's log-sum-exp of logits [N]."""
    wide = _wide(draft_logits)
    top = draft_logits.gather(1, top_ids).to(wide)
    tail = torch.empty(len(draft_logits), dtype=wide, device=draft_logits.device)
    for start in range(0, len(draft_logits), ROWS_PER_CHUNK):
        rows = slice(start, start + ROWS_PER_CHUNK)
        rest = draft_logits[rows].to(wide, copy=True).scatter_(1, top_ids[rows], -torch.inf)
        largest = rest.amax(-1, keepdim=True).nan_to_num(neginf=0.0)
        tail[rows] = rest.sub_(largest).exp_().sum(-1).log() + largest.squeeze(1)
    total = torch.logaddexp(top.logsumexp(-1), tail)
    return top - total[:, None], tail - total, tail


def _normalised(top_logprobs: Tensor, tail_logprob: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    top, tail = top_logprobs.to(dtype), tail_logprob.to(dtype)
    total = torch.logaddexp(top.logsumexp(-1), tail)
    return top - total[:, None], tail - total


def _term(target: Tensor, draft: Tensor) -> Tensor:
    """t log(t / d), which is 0 at t = 0 whatever d is."""
    return torch.where(target == -torch.inf, 0.0, target.exp() * (target - draft))


def _wide(logits: Tensor) -> torch.dtype:
    return torch.promote_types(logits.dtype, torch.float32)
