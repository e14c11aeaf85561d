"""What a request's temperature and filters make of the target's logged distribution, and of a draft's.

As `serving.sampling.logits` samples: temperature, top-k, top-p on what is left, min-p. A greedy request's
are passed over: what is said of it here is at temperature 1, unfiltered.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

LIKELIEST = 256
"""Tokens among which the last that the filters let through is looked for first; 16 times as many then."""
ROWS_AT_ONCE = 64
"""Rows widened to float32, see `training.scoring.losses`."""


SAMPLED = ("temperature", "top_p", "top_k", "min_p")
"""What of a request's sampling parameters is recorded."""


class Sampling(NamedTuple):
    """How the requests of N positions were sampled, [N] each, as in their sampling parameters."""

    temperature: Tensor
    """0 is greedy."""
    top_p: Tensor
    top_k: Tensor
    min_p: Tensor
    any_filtered: bool = True
    """Whether some request may have filters: known on the host, which need not look for them on a device."""

    @property
    def divisor(self) -> Tensor:
        """What logits are divided by."""
        return torch.where(self.temperature == 0, 1.0, self.temperature)

    @property
    def is_filtered(self) -> Tensor:
        """bool [N]."""
        return (self.temperature > 0) & ((self.top_p < 1) | (self.top_k > 0) | (self.min_p > 0))

    def at(self, rows: Tensor | slice) -> "Sampling":
        return Sampling(
            self.temperature[rows], self.top_p[rows], self.top_k[rows], self.min_p[rows], self.any_filtered
        )


def unfiltered(temperature: Tensor) -> Sampling:
    """Of [N] positions at `temperature` alone."""
    none = torch.zeros_like(temperature)
    return Sampling(temperature, none + 1, none, none, any_filtered=False)


def sampled_target(
    top_logprobs: Tensor, tail_logprob: Tensor, sampling: Sampling, vocab_size: int
) -> tuple[Tensor, Tensor]:
    """Log-probs of the target's top tokens [N, K] and of its tail [N] as they were sampled from; they sum to 1.

    Of the tail, logged as one mass at temperature 1, see `tail_at`; top-p keeps what it lacks of it, top-k and
    min-p keep all of it or nothing. Shapes: top_logprobs [N, K], likeliest first; tail_logprob [N].
    """
    divisor = sampling.divisor.to(top_logprobs.dtype)
    top = top_logprobs / divisor[:, None]
    tail = tail_at(divisor, top_logprobs[:, -1], tail_logprob, vocab_size - top.shape[1])
    masses = torch.cat([top, tail[:, None]], 1).log_softmax(-1)
    if sampling.any_filtered and (filtered := sampling.is_filtered).any():
        masses[filtered] = _filtered(masses[filtered], sampling.at(filtered))
    return masses[:, :-1], masses[:, -1]


def tail_at(temperature: Tensor, least: Tensor, tail: Tensor, unseen: int) -> Tensor:
    r"""Log of the tail's mass [N] at `temperature`, where that of a token is :math:`e^{l / T}`.

    Its mass at 1 does not determine it. One bound has it spread evenly over the `unseen` tokens, the other on as
    few as there may be, each as likely as the `least` of the top tokens (by Jensen, as :math:`m^{1/T}` is convex
    below temperature 1 and concave above). Taken is their geometric mean: behind 64 tokens of SmolLM2-135M the
    tail's share is then 0.005 off in the mean at 0.7 (0.074 if the tail were one token), 0.025 at 1.5.
    """
    power = 1 / temperature
    least = torch.minimum(least, tail)
    spread = (1 - power) * math.log(max(1, unseen))
    gathered = (power - 1) * least.nan_to_num(neginf=0.0)
    return ((1 + power) * tail + spread + gathered) / 2


def lowest_drafted(draft_logits: Tensor, sampling: Sampling) -> Tensor | None:
    """Of each row of logits [N, V] over its temperature the lowest that its filters let through, [N].

    Below it nothing is drafted. -inf where nothing is filtered; None if no row is.
    """
    if not sampling.any_filtered or not len(filtered := sampling.is_filtered.nonzero().squeeze(1)):
        return None
    lowest = torch.full(
        (len(draft_logits),), -torch.inf, dtype=wide_dtype(draft_logits), device=draft_logits.device
    )
    for rows in filtered.split(ROWS_AT_ONCE):
        of_rows = sampling.at(rows)
        lowest[rows] = _lowest(scaled(draft_logits[rows], of_rows.divisor), of_rows, LIKELIEST)
    return lowest


def scaled(logits: Tensor, divisor: Tensor) -> Tensor:
    """`logits` [N, V] over `divisor` [N], wide, in memory of its own: widened first, as mixing dtypes is slow."""
    return logits.to(wide_dtype(logits), copy=True).div_(divisor[:, None])


def wide_dtype(logits: Tensor) -> torch.dtype:
    """What is computed in: float32 at least."""
    return torch.promote_types(logits.dtype, torch.float32)


def _lowest(scaled: Tensor, sampling: Sampling, width: int) -> Tensor:
    width = min(width, scaled.shape[1])
    likeliest = scaled.topk(width).values
    total = scaled.logsumexp(-1)
    others = total + torch.log1p(-(likeliest.logsumexp(-1) - total).exp().clamp_max(1.0))
    passed, _ = _passed(likeliest, others, sampling)
    lowest = likeliest.masked_fill(~passed, torch.inf).amin(-1)
    # The last one seen may not be the last, nor is it known what top-k leaves of the others.
    open_ended = passed[:, -1] | ((sampling.top_k > width) & (sampling.top_p < 1))
    if width < scaled.shape[1] and open_ended.any():
        lowest[open_ended] = _lowest(scaled[open_ended], sampling.at(open_ended), 16 * width)
    return lowest


def _filtered(masses: Tensor, sampling: Sampling) -> Tensor:
    passed, probs = _passed(masses[:, :-1], masses[:, -1], sampling)
    missing = (sampling.top_p - (1 - probs[:, -1])).clamp_min(0)
    tail = torch.where(sampling.top_p < 1, torch.minimum(probs[:, -1], missing), probs[:, -1])
    tail = torch.where(passed[:, -1], tail, 0.0)
    kept = torch.cat([probs[:, :-1].masked_fill(~passed, 0.0), tail[:, None]], 1)
    return (kept / kept.sum(-1, keepdim=True)).log().to(masses.dtype)


def _passed(likeliest: Tensor, others: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Which of the likeliest tokens the filters let through, bool [N, W], and the probabilities [N, W + 1] that
    top-k leaves them and all others together.

    Shapes: likeliest [N, W], logs in descending order; others [N].
    """
    width = likeliest.shape[1]
    limit = torch.where(sampling.top_k > 0, sampling.top_k, torch.iinfo(torch.int64).max)[:, None]
    within = torch.arange(width, device=likeliest.device) < limit
    others = others[:, None].masked_fill(limit <= width, -torch.inf)
    probs = torch.cat([likeliest.masked_fill(~within, -torch.inf), others], 1).softmax(-1)
    own = probs[:, :-1]
    before = own.cumsum(-1) - own
    passed = within & (before < sampling.top_p[:, None]) & (own >= sampling.min_p[:, None] * own[:, :1])
    passed[:, 0] = True
    return passed, probs
