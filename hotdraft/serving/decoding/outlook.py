"""What rows could propose, and how many tokens that yields on average."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Outlook(NamedTuple):
    """What a row could propose."""

    guessed: np.ndarray
    """The chance of each token guessed from text."""
    drafted: np.ndarray
    """Likewise of each that the draft model would propose, [max_k]."""
    most: int
    """Tokens that it may propose at most."""
    draft_alone: bool = False
    """Whether the draft is to propose in every round, and nothing else does."""
    alternatives: np.ndarray = np.empty(0)
    """The chance of each second choice to come in the place of a refused drafted token, likeliest first."""


def tokens_of(rows: Sequence[Outlook], max_k: int, most: int, reading: float) -> np.ndarray:
    """Tokens [B, M+1, max_k+1] that a row yields with m guessed and j drafted; -inf where it may not.

    With those by second choices beside drafted ones, less what to read one of them costs: as much as takes to give
    `reading` tokens.
    """
    longest = max(len(row.guessed) for row in rows)
    reached = np.ones((len(rows), longest + 1))
    drafts = np.zeros((len(rows), max_k + 1))
    others = np.zeros((len(rows), max(len(row.alternatives) for row in rows)))
    for index, row in enumerate(rows):
        reached[index, 1 : len(row.guessed) + 1] = row.guessed
        drafts[index, 1 : len(row.drafted) + 1] = row.drafted
        others[index, : len(row.alternatives)] = row.alternatives
    reached = reached.cumprod(1)
    drafts[:, 1:] = drafts[:, 1:].cumprod(1).cumsum(1)
    yields = reached.cumsum(1)[:, :, None] + reached[:, :, None] * drafts[:, None]
    if others.shape[1]:
        yields[:, :, 1:] += (reached[:, :, None] * others[:, None] - reading).clip(0).sum(2)[:, :, None]
    for index, row in enumerate(rows):
        yields[index, len(row.guessed) + 1 :] = -np.inf
        yields[index, :, len(row.drafted) + 1 :] = -np.inf
    mays = [min(row.most, most) for row in rows]
    if min(mays) < longest + max_k:
        lengths = np.add.outer(np.arange(longest + 1), np.arange(max_k + 1))
        yields[lengths > np.array(mays)[:, None, None]] = -np.inf
    return yields
