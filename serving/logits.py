"""From logits to the distribution that is sampled: one function for target and draft alike."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from serving.request import SamplingParams


@dataclass(frozen=True)
class SamplingBatch:
    """The sampling parameters of a batch, one row a request; shapes [B, 1] to broadcast over positions."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    presence_penalty: torch.Tensor
    frequency_penalty: torch.Tensor
    seeds: torch.Tensor
    """int64 [B]."""
    any_sampled: bool
    """False: every row is greedy, and probabilities need not be computed at all."""
    any_filtered: bool
    any_penalised: bool
    any_logprobs: bool
    """True: some request is told the log-probs of its tokens."""

    @classmethod
    def of(cls, params: Sequence[SamplingParams], seeds: Sequence[int], device: torch.device) -> "SamplingBatch":
        def column(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)[:, None]

        return cls(
            temperature=column([p.temperature for p in params]),
            top_k=torch.tensor([p.top_k for p in params], device=device)[:, None],
            top_p=column([p.top_p for p in params]),
            min_p=column([p.min_p for p in params]),
            presence_penalty=column([p.presence_penalty for p in params]),
            frequency_penalty=column([p.frequency_penalty for p in params]),
            seeds=torch.tensor(seeds, dtype=torch.int64, device=device),
            any_sampled=any(p.temperature > 0 for p in params),
            any_filtered=any(p.temperature > 0 and (p.top_k > 0 or p.top_p < 1 or p.min_p > 0) for p in params),
            any_penalised=any(p.has_penalties for p in params),
            any_logprobs=any(p.logprobs is not None for p in params),
        )


def process_logits(logits: torch.Tensor, sampling: SamplingBatch) -> torch.Tensor:
    """Probabilities float32 [B, T, V] of logits [B, T, V]; a greedy row is one-hot at its argmax.

    Filters apply in the usual order: temperature, top-k, top-p on what is left, min-p. Penalties come
    before all of them: penalised logits are what is passed in.
    """
    one_hot = F.one_hot(logits.argmax(-1), logits.shape[-1]).float()
    if not sampling.any_sampled:
        return one_hot
    greedy = sampling.temperature == 0
    scaled = logits.float() / torch.where(greedy, 1.0, sampling.temperature)[..., None]
    if sampling.any_filtered:
        scaled = _filter(scaled, sampling)
    return torch.where(greedy[..., None], one_hot, scaled.softmax(-1))


def _filter(logits: torch.Tensor, sampling: SamplingBatch) -> torch.Tensor:
    vocabulary = logits.shape[-1]
    ordered, order = logits.sort(dim=-1, descending=True)
    rank = torch.arange(vocabulary, device=logits.device)
    top_k = torch.where(sampling.top_k > 0, sampling.top_k, vocabulary)[..., None]
    ordered = ordered.masked_fill(rank >= top_k, -torch.inf)
    probs = ordered.softmax(-1)
    mass_before = probs.cumsum(-1) - probs
    drop = (mass_before >= sampling.top_p[..., None]) | (probs < sampling.min_p[..., None] * probs[..., :1])
    drop[..., 0] = False
    ordered = ordered.masked_fill(drop, -torch.inf)
    return torch.empty_like(logits).scatter_(-1, order, ordered)


def sample(probs: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Token ids [...] drawn from unnormalised probs [..., V] by inverting the CDF at uniform [...].

    A token of probability 0 is never drawn: the CDF does not rise there.
    """
    cdf = probs.cumsum(-1, dtype=torch.float64)
    return torch.searchsorted(cdf, (uniform * cdf[..., -1])[..., None], right=True).squeeze(-1)
