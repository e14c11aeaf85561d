"""What the draft is taught, and what it would be worth: losses over logged target distributions."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from hotdraft.pipeline.config.learning import LossName
from hotdraft.pipeline.replay.sample import MIN_LOG_MASS
from hotdraft.training.batches.sampling import Sampling, lowest_drafted, scaled, wide_dtype

ROWS_PER_CHUNK = 64
"""Rows widened to float32 at a time: a chunk of a 50k vocabulary is 12 MB and stays near the cache."""

Divergence = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From log-masses [N, B] of the target and of the draft: the value [N], and of each bucket the draft's mass times
the derivative of the value by that mass, [N, B]. A multiple of the draft's masses may be missing from the
latter, as they sum to 1."""

LK_DECAY = 3.0


def distillation_loss(
    draft_logits: Tensor,
    top_ids: Tensor,
    top_logprobs: Tensor,
    tail_logprob: Tensor,
    *,
    loss: LossName,
    sampling: Sampling | None = None,
) -> Tensor:
    """A divergence between target and draft over the target's top K tokens and one tail bucket.

    Without the tail a draft could lower it by moving mass onto the top K in any proportion. Merging tokens
    to a bucket never raises a divergence: this is a lower bound of that over the vocabulary, and equals it
    at K = V. Which divergence `loss` is, the functions of `DIVERGENCES` say.

    With `sampling` it is between what both are sampled from: the draft at the request's temperature, over the
    tokens that the filters let through on either side, as none of the others is ever drafted or accepted. It is
    multiplied by the temperature, or the gradient would grow as that falls.

    Args:
        draft_logits: [N, V] in any float dtype; computed in float32 (float64 for float64).
        top_ids: int64 [N, K], distinct in a row.
        top_logprobs: [N, K] natural logs. Storage rounding is undone: top and tail are renormalised.
        tail_logprob: [N]; -inf is an empty tail.
        sampling: what the target's are from already, see `sampled_target`; temperature 1, unfiltered if None.

    Returns:
        [N]; differentiable in `draft_logits`. No [N, V] tensor but the gradient is allocated.
    """
    if top_ids.shape[1] >= draft_logits.shape[1]:  # no tail, though rounding may have logged one: no draft has one
        tail_logprob = torch.full_like(tail_logprob, -torch.inf)
    target = _normalised(top_logprobs, tail_logprob, wide_dtype(draft_logits))
    if sampling is None:
        divisor, lowest = draft_logits.new_ones(len(draft_logits), dtype=target.dtype), None
    else:
        divisor, lowest = sampling.divisor.to(target.dtype), lowest_drafted(draft_logits.detach(), sampling)
    if lowest is not None:
        lowest = lowest.masked_fill(
            target[:, -1] > -torch.inf, -torch.inf
        )  # any token of the tail may be the target's
    value: Tensor = _Bucketed.apply(draft_logits, top_ids, target, divisor, lowest, DIVERGENCES[loss])
    return value * divisor


def forward_kl(target: Tensor, draft: Tensor) -> tuple[Tensor, Tensor]:
    r"""KL divergence from target to draft, :math:`\sum t \log(t / d)`, in nats.

    The objective of Online Speculative Decoding (Liu et al., 2024).
    """
    return _expected(target, target - draft), -target.exp()


def reverse_kl(target: Tensor, draft: Tensor) -> tuple[Tensor, Tensor]:
    r"""KL divergence from draft to target, :math:`\sum d \log(d / t)`, in nats; the draft seeks modes.

    DistillSpec (Zhou et al., 2024), section 3. Where the target has nothing it is taken to have the least
    mass that is logged.
    """
    terms = _expected_terms(draft, draft - target.clamp_min(MIN_LOG_MASS))
    return terms.sum(-1), terms


def jsd(target: Tensor, draft: Tensor) -> tuple[Tensor, Tensor]:
    r"""Jensen-Shannon divergence, :math:`\frac12 KL(t \| m) + \frac12 KL(d \| m)` with :math:`m = \frac12 (t + d)`.

    DistillSpec (Zhou et al., 2024), section 3; at most log 2 nats.
    """
    mean = torch.logaddexp(target, draft) - math.log(2)
    of_draft = _expected_terms(draft, draft - mean) / 2
    return _expected(target, target - mean) / 2 + of_draft.sum(-1), of_draft


def total_variation(target: Tensor, draft: Tensor) -> tuple[Tensor, Tensor]:
    r"""Total variation distance, :math:`\frac12 \sum |t - d|`: the chance that a drafted token is rejected.

    Leviathan et al. (2023), corollary 3.6. Its gradient vanishes where the two have little in common.
    """
    target, draft = target.exp(), draft.exp()
    return (target - draft).abs().sum(-1) / 2, (draft - target).sign() * draft / 2


def negative_log_acceptance(target: Tensor, draft: Tensor) -> tuple[Tensor, Tensor]:
    r""":math:`-\log \alpha` of the acceptance :math:`\alpha = 1 - TV`, with a gradient where there is little of it.

    LK losses (Samarin et al., 2026), the variant :math:`\mathcal{L}_{LK}^{\alpha}`.
    """
    distance, slope = total_variation(target, draft)
    acceptance = (1 - distance).clamp_min(math.exp(MIN_LOG_MASS))
    return -acceptance.log(), slope / acceptance[:, None]


def lk_hybrid(target: Tensor, draft: Tensor) -> tuple[Tensor, Tensor]:
    r""":math:`\lambda KL(t \| d) + (1 - \lambda) TV` with :math:`\lambda = e^{-3 \alpha}`, taken as a constant.

    From likelihood to acceptance as the draft improves: LK losses (Samarin et al., 2026), the variant
    :math:`\mathcal{L}_{LK}^{\lambda}` at its best decay.
    """
    kl, kl_slope = forward_kl(target, draft)
    distance, slope = total_variation(target, draft)
    share = (-LK_DECAY * (1 - distance)).exp()
    return share * kl + (1 - share) * distance, torch.lerp(slope, kl_slope, share[:, None])


DIVERGENCES: Mapping[LossName, Divergence] = MappingProxyType(
    {
        "forward_kl": forward_kl,
        "reverse_kl": reverse_kl,
        "jsd": jsd,
        "total_variation": total_variation,
        "negative_log_acceptance": negative_log_acceptance,
        "lk_hybrid": lk_hybrid,
    }
)


@torch.no_grad()
def overlap_and_agreement(
    draft_logits: Tensor, top_ids: Tensor, top_logprobs: Tensor, tail_logprob: Tensor, sampling: Sampling
) -> tuple[Tensor, Tensor]:
    r"""Chances [N] that one drafted token is accepted at each position: sampled as `sampling` says, and greedily.

    The first is the overlap :math:`\sum_{k \in top} \min(t_k, d_k)` (Leviathan et al., 2023) of what both models
    are sampled from, at temperature 1 where the request was greedy: a lower bound, as the tail's own overlap, at
    most the target's tail mass, is not counted. The second is 1 where the likeliest tokens agree and 0 elsewhere.
    Shapes are those of `distillation_loss`.
    """
    wide = wide_dtype(draft_logits)
    target = _normalised(top_logprobs, tail_logprob, wide)
    lowest = lowest_drafted(draft_logits, sampling)
    draft, _ = _draft_logprobs(draft_logits, top_ids, sampling.divisor.to(wide), lowest)
    overlap = torch.minimum(target, draft)[:, :-1].exp().sum(-1)
    return overlap, greedy_agreement(draft_logits, top_ids, top_logprobs)


@torch.no_grad()
def greedy_agreement(draft_logits: Tensor, top_ids: Tensor, top_logprobs: Tensor) -> Tensor:
    """1 [N] where the likeliest tokens agree and 0 elsewhere, in float32 at least."""
    target_best = top_ids.gather(1, top_logprobs.argmax(-1, keepdim=True)).squeeze(1)
    return (draft_logits.argmax(-1) == target_best).to(wide_dtype(draft_logits))


def expected_acceptance(
    draft_logits: Tensor, top_ids: Tensor, top_logprobs: Tensor, tail_logprob: Tensor, sampling: Sampling
) -> Tensor:
    """Chance [N] that one drafted token is accepted at each position as its request was sampled; see above."""
    if (sampling.temperature == 0).all():
        return greedy_agreement(draft_logits, top_ids, top_logprobs)
    overlap, agreement = overlap_and_agreement(draft_logits, top_ids, top_logprobs, tail_logprob, sampling)
    return torch.where(sampling.temperature == 0, agreement, overlap)


class _Bucketed(torch.autograd.Function):
    """The closed-form gradient costs one pass over the vocabulary and never divides by a mass.

    With :math:`s_b = d_b \\, \\partial D / \\partial d_b`, softmax gives the logits of a bucket's tokens together
    :math:`s_b - d_b \\sum_c s_c`; the tail's share it out as softmax does among them.
    """

    @staticmethod
    def forward(
        ctx: Any,
        draft_logits: Tensor,
        top_ids: Tensor,
        target: Tensor,
        divisor: Tensor,
        lowest: Tensor | None,
        divergence: Divergence,
    ) -> Tensor:
        draft, tail_logits = _draft_logprobs(draft_logits, top_ids, divisor, lowest, target[:, :-1] > -torch.inf)
        value, slope = divergence(target, draft)
        gradient = slope - draft.exp() * slope.sum(-1, keepdim=True)
        ctx.save_for_backward(draft_logits, top_ids, gradient / divisor[:, None], tail_logits, divisor, lowest)
        return value

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        draft_logits, top_ids, by_bucket, tail_logits, divisor, lowest = ctx.saved_tensors
        gradient = torch.empty_like(draft_logits)
        shift = tail_logits.nan_to_num(neginf=0.0)[
            :, None
        ]  # no tail: every entry that has a gradient is overwritten
        for start in range(0, len(draft_logits), ROWS_PER_CHUNK):
            rows = slice(start, start + ROWS_PER_CHUNK)
            chunk = scaled(draft_logits[rows], divisor[rows])
            barred = None if lowest is None else chunk < lowest[rows, None]
            chunk.sub_(shift[rows]).clamp_(max=0).exp_()
            if barred is not None:
                chunk.masked_fill_(barred, 0.0)
            chunk.mul_(by_bucket[rows, -1:]).scatter_(1, top_ids[rows], by_bucket[rows, :-1])
            gradient[rows] = chunk.mul_(grad_output[rows, None])
        return gradient, None, None, None, None, None


def _draft_logprobs(
    draft_logits: Tensor,
    top_ids: Tensor,
    divisor: Tensor,
    lowest: Tensor | None,
    spared: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probs of the top tokens and of all others together, [N, K + 1], and the others' log-sum-exp [N].

    Of logits over `divisor` [N]; what is below `lowest` [N] then has no mass, but for the top tokens that are
    `spared`, bool [N, K].
    """
    wide = wide_dtype(draft_logits)
    top = draft_logits.gather(1, top_ids) / divisor[:, None]
    if lowest is not None:
        barred = top < lowest[:, None]
        top = top.masked_fill(barred if spared is None else barred & ~spared, -torch.inf)
    tail = torch.empty(len(draft_logits), dtype=wide, device=draft_logits.device)
    for start in range(0, len(draft_logits), ROWS_PER_CHUNK):
        rows = slice(start, start + ROWS_PER_CHUNK)
        rest = scaled(draft_logits[rows], divisor[rows]).scatter_(1, top_ids[rows], -torch.inf)
        if lowest is not None:
            rest.masked_fill_(rest < lowest[rows, None], -torch.inf)
        largest = rest.amax(-1, keepdim=True).nan_to_num(neginf=0.0)
        tail[rows] = rest.sub_(largest).exp_().sum(-1).log() + largest.squeeze(1)
    total = torch.logaddexp(top.logsumexp(-1), tail)
    return torch.cat([top, tail[:, None]], 1) - total[:, None], tail


def _normalised(top_logprobs: Tensor, tail_logprob: Tensor, dtype: torch.dtype) -> Tensor:
    """Log-masses [N, K + 1]."""
    buckets = torch.cat([top_logprobs.to(dtype), tail_logprob[:, None].to(dtype)], 1)
    return buckets - buckets.logsumexp(-1, keepdim=True)


def _expected(logprobs: Tensor, values: Tensor) -> Tensor:
    return _expected_terms(logprobs, values).sum(-1)


def _expected_terms(logprobs: Tensor, values: Tensor) -> Tensor:
    """Mass times value, which is 0 where there is no mass whatever the value is."""
    return torch.where(logprobs == -torch.inf, 0.0, logprobs.exp() * values)
