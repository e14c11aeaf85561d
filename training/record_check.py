"""Recorded requests that contradict themselves: neither can a draft learn from them, nor can one be judged by them.

The distributions of a request and its answer come from the same forward passes of the target. Where they do
not go together something between there and here broke, and a gate that trusted them would let through what
was taught by them.
"""

import math
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from datasets import Dataset

from pipeline.records import ReplaySample
from pipeline.replay import SCHEMA, sample_from_row

ROUNDING = 1e-2
"""Nats by which stored log-probs may be off, float16 as they are."""
MASS_TOLERANCE = 0.05
OTHER_THAN_LIKELIEST = 0.05
"""Share of a greedy answer's tokens that may be less likely than another by more than rounding."""
EVIDENCE = math.log(1e4)
"""Log of the likelihood ratio against its distributions from which on an answer was not drawn from them."""
ROWS_AT_ONCE = 256


def contradictions(rows: Dataset, *, vocab_size: int | None = None, answered: bool = True) -> Iterator[str | None]:
    """`contradiction` of each of `rows`, as `ReplayBuffer.load` gives them."""
    for row in _rows(rows):
        try:
            sample = sample_from_row(row)
        except ValueError as error:
            yield f"its arrays are no request: {error}"
        else:
            yield contradiction(sample, vocab_size=vocab_size, answered=answered)


def contradiction(sample: ReplaySample, *, vocab_size: int | None = None, answered: bool = True) -> str | None:
    """Why `sample` cannot be true; None if it can.

    `answered` says that the target wrote the answer. It need not be likely if it is text that the target scored.
    """
    count = len(sample.output_ids)
    logprobs = sample.target_top_logprobs.astype(np.float32)
    tail = sample.target_tail_logprob
    if not count or logprobs.shape != sample.target_top_ids.shape or len(logprobs) != count or len(tail) != count:
        return "it has not one distribution for each token of its answer"
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
    own = np.where(sample.target_top_ids == sample.output_ids[:, None], logprobs, -np.inf).max(1)
    if sample.temperature == 0:
        other = (own < logprobs.max(1) - ROUNDING).mean()
        return f"{other:.0%} of its greedy answer is not the likeliest" if other > OTHER_THAN_LIKELIEST else None
    if _evidence(own, logprobs, tail, sample.temperature) > EVIDENCE:
        return "its answer was not drawn from its distributions"
    return None


def _evidence(own: np.ndarray, logprobs: np.ndarray, tail: np.ndarray, temperature: float) -> float:
    r"""Log of how much likelier an answer is under a rival than under the distributions q it came with.

    The rival draws from the tail half of the time, and else as :math:`\sqrt q` among the top tokens. Answers
    drawn from q exceed :math:`\log c` with a chance of at most 1 / c (Markov), and less where unlikely tokens
    were barred. Log-probs `own` [N] are those of the answer's tokens, -inf for one of the tail's.
    """
    buckets = np.concatenate([logprobs, tail[:, None]], 1) / temperature
    total = np.logaddexp.reduce(buckets, 1)
    in_tail = own == -np.inf
    drawn = np.where(in_tail, buckets[:, -1], own / temperature) - total
    flat = np.logaddexp.reduce((buckets[:, :-1] - total[:, None]) / 2, 1)
    rival = math.log(0.5) + np.where(in_tail, 0.0, drawn / 2 - flat)
    return float((rival - drawn).sum())


def _rows(rows: Dataset) -> Iterator[dict]:
    """The rows as arrays; several times faster than one at a time."""
    for table in rows.with_format("arrow").iter(ROWS_AT_ONCE):
        columns = [_pieces(table[name].combine_chunks()) for name in SCHEMA.names]
        for values in zip(*columns, strict=True):
            yield dict(zip(SCHEMA.names, values, strict=True))


def _pieces(column: pa.Array) -> list:
    if not pa.types.is_list(column.type):
        return column.to_pylist()
    offsets = column.offsets.to_numpy()
    return np.split(column.flatten().to_numpy(zero_copy_only=False), offsets[1:-1] - offsets[0])
