"""Recorded requests that contradict themselves: neither can a draft learn from them, nor can one be judged by them.

The distributions of a request and its answer come from the same forward passes of the target. Where they do
not go together something between there and here broke, and a gate that trusted them would let through what
was taught by them.
"""

import math

import numpy as np
import torch

from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.training.batches.sampling import SAMPLED, Sampling, sampled_target, unfiltered

ROUNDING = 1e-2
"""Nats by which stored log-probs may be off, float16 as they are."""
MASS_TOLERANCE = 0.05
OTHER_THAN_LIKELIEST = 0.05
"""Share of a greedy answer's tokens that may be less likely than another by more than rounding."""
EVIDENCE = math.log(1e4)
"""Log of the likelihood ratio against its distributions from which on an answer was not drawn from them."""
BARRED = 1e-3
"""Chance of a token that the filters bar: rounding decides what is at their edge."""


def contradiction(sample: ReplaySample, *, vocab_size: int | None = None, answered: bool = True) -> str | None:
    """Why `sample` cannot be true; None if it can.

    `answered` says that the target wrote the answer. It need not be likely if it is text that the target scored.
    """
    count = len(sample.output_ids)
    logprobs = sample.target_top_logprobs.astype(np.float32)
    tail = sample.target_tail_logprob
    same = logprobs.shape == sample.target_top_ids.shape and len(logprobs) == len(tail) == count
    if not logprobs.size or not same:
        return "it has not one distribution for each token of its answer"
    if any(len(part) != count for part in (sample.drafted_ids, sample.accepted, sample.draft_versions)):
        return "it does not say of each token of its answer how it was drafted"
    if not all(0 <= number < math.inf for number in (sample.temperature, sample.top_p, sample.min_p)):
        return "it has a temperature or filter that is not finite or below 0"
    ids = (sample.prompt_ids, sample.output_ids, sample.target_top_ids)
    if any(part.size and (part.min() < 0 or (vocab_size and part.max() >= vocab_size)) for part in ids):
        return "it has token ids outside the vocabulary"
    # written so that NaN fails
    if not ((logprobs <= ROUNDING).all() and (tail <= ROUNDING).all()):
        return "it has log-probs that are not finite or above 0"
    mass = np.exp(logprobs).sum(1) + np.exp(tail)
    if not (np.abs(mass - 1) <= MASS_TOLERANCE).all():
        return f"it has probabilities that sum to {mass[np.abs(mass - 1).argmax()]:.2f}"
    if not answered or sample.temperature > 1:  # what heat makes of the tail is not known
        return None
    is_own = sample.target_top_ids == sample.output_ids[:, None]
    if sample.temperature == 0:
        own = np.where(is_own, logprobs, -np.inf).max(1)
        other = (own < logprobs.max(1) - ROUNDING).mean()
        return f"{other:.0%} of its greedy answer is not the likeliest" if other > OTHER_THAN_LIKELIEST else None
    if _evidence(is_own, _drawn_from(sample, vocab_size or int(sample.target_top_ids.max()) + 1)) > EVIDENCE:
        return "its answer was not drawn from its distributions"
    return None


def _drawn_from(sample: ReplaySample, vocab_size: int) -> np.ndarray:
    """Log-masses [N, K + 1] of what the answer was drawn from, with some for what the filters bar."""
    logprobs, tail_logprob = (
        torch.tensor(part, dtype=torch.float32) for part in (sample.target_top_logprobs, sample.target_tail_logprob)
    )
    temperature, top_p, top_k, min_p = (
        torch.full((len(sample.output_ids),), float(getattr(sample, name))) for name in SAMPLED
    )
    own = Sampling(temperature, top_p, top_k, min_p)
    filtered, whole = (
        torch.cat([top, tail[:, None]], 1)
        for top, tail in (
            sampled_target(logprobs, tail_logprob, sampling, vocab_size)
            for sampling in (own, unfiltered(own.temperature))
        )
    )
    return torch.logaddexp(filtered + math.log1p(-BARRED), whole + math.log(BARRED)).numpy()


def _evidence(is_own: np.ndarray, masses: np.ndarray) -> float:
    r"""Log of how much likelier an answer is under a rival than under the distributions q it came with.

    The rival draws from the tail half of the time, and else as :math:`\sqrt q` among the top tokens. Answers
    drawn from q exceed :math:`\log c` with a chance of at most 1 / c (Markov). `is_own` [N, K] says which of the
    top tokens is the answer's, none if it is one of the tail's; `masses` [N, K + 1] are logs.
    """
    in_tail = ~is_own.any(1)
    drawn = np.where(np.column_stack([is_own, in_tail]), masses, -np.inf).max(1)
    flat = np.logaddexp.reduce(masses[:, :-1] / 2, 1)
    rival = math.log(0.5) + np.where(in_tail, 0.0, drawn / 2 - flat)
    return float((rival - drawn).sum())
