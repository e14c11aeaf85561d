"""Keeps the temperatures of requests that speculate, which vLLM's build for CPUs loses.

There (0.32.0) a request's temperature and top_p are spread over the positions that it verifies through integers,
and what comes is memory that nobody wrote: drawn answers are not the target's. It is mended only where it is so.
"""

import logging
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger(__name__)


def keep_temperatures(sampler: Any) -> bool:
    """Mend `sampler`, vLLM's module `v1.sample.rejection_sampler`, if it needs that; whether it did."""
    told, spans = torch.tensor([0.5, 0.25]), torch.tensor([2, 3], dtype=torch.int32)
    if torch.equal(sampler.expand_batch_to_tokens(told, spans, 3), torch.tensor([0.5, 0.5, 0.25])):
        return False
    sampler.expand_batch_to_tokens = expand_batch_to_tokens
    logger.warning("this vLLM loses the temperatures of requests that speculate: mended by hotdraft")
    return True


def expand_batch_to_tokens(
    x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Tensor:
    """`x` [R], of each request as often as it has positions [num_tokens], with one value replaced; `cu_num_tokens`
    [R] are their sums."""
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    spread = x.repeat_interleave(counts.long(), output_size=num_tokens)
    return spread.masked_fill(spread == replace_from, replace_to) if replace_from != replace_to else spread
