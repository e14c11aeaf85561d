"""What the server draws from, as an oracle."""

import torch
from torch import Tensor

from hotdraft.serving.sampling.distributions import Distributions
from hotdraft.serving.sampling.logits import SamplingBatch


def served_probs(logits: Tensor, sampling: SamplingBatch) -> Tensor:
    """Probabilities [B, T, V] of logits [B, T, V]."""
    given = Distributions.of(logits, sampling)
    return torch.stack([given.probs_at(torch.full((len(logits),), t)) for t in range(logits.shape[1])], 1)
