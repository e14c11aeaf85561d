"""Guessing tokens from text without a model: what followed when the last tokens came before.

Oliaro et al., "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications" (2024). Prompt lookup
(Saxena, 2023) is its case of a request's own text alone.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hotdraft.serving.proposers.recent_text import END, RecentText

LOOK_BACK = 16
"""Tokens of the context that places are compared by."""
PLACES = 16
"""Newest ones that are looked at."""
LENGTHS = (2, 3, 4, 5, 7, 10, 14)
"""Matched tokens from which on another kind begins."""
AGREEMENTS = (0.6, 1.0)
"""Likewise shares of the places that go on alike."""
LEAST_CHANCE = 0.02
"""That all of a guess is accepted, below which it ends: no more is worth its verification, nor looking for."""
NUM_KINDS = (len(LENGTHS) + 1) * (len(AGREEMENTS) + 1)


class Guess(NamedTuple):
    """Tokens that may come next, and of each the kind: how much of the context matched, how many places agreed."""

    token_ids: tuple[int, ...] = ()
    kinds: tuple[int, ...] = ()


NOTHING = Guess()


def assumed_rates() -> np.ndarray:
    """The acceptance [NUM_KINDS] of tokens before any was judged: as on text-to-SQL and arithmetic of SmolLM2."""
    by_length = np.array([0.45, 0.6, 0.62, 0.7, 0.75, 0.8, 0.8, 0.8])
    return np.outer(by_length, [0.32, 0.7, 1.0]).ravel()


def guess(context: np.ndarray, recent: RecentText | None, most: int, rates: np.ndarray | None = None) -> Guess:
    """Up to `most` tokens after `context` [n]: from the places where most of its end came before.

    In the context itself, or in `recent` answers, which know of more than one way to go on. By `rates` [NUM_KINDS]
    it ends where it is too unlikely.
    """
    if len(context) < 2 or most < 1:
        return NOTHING
    own, shared = _in_context(context, most), _in_answers(context, recent, most)
    places, matched = max(shared, own, key=lambda found: found[1])
    token_ids, kinds, chance = [], [], 1.0
    by_kind = [1.0] * NUM_KINDS if rates is None else rates.tolist()
    for step in range(most):
        if not places or chance < LEAST_CHANCE:
            break
        following = [place[step] for place in places]
        token, count = following[0], following.count(following[0])
        if count < len(places):
            [(token, count)] = Counter(following).most_common(1)
        if token == END:
            break
        token_ids.append(token)
        kinds.append(_kind(matched + step, count / len(places)))
        chance *= by_kind[kinds[-1]]
        if count < len(places):
            places = [place for place in places if place[step] == token]
    return Guess(tuple(token_ids), tuple(kinds))


Found = tuple[list[list[int]], int]
"""What followed at each place, and how many tokens before it matched."""


def _in_context(context: np.ndarray, most: int) -> Found:
    places = _occurrences(context, 2) or _occurrences(context, 1)
    around = []
    for end in places:
        after = context[end : end + most].tolist()
        around.append((context[max(0, end - LOOK_BACK) : end].tolist(), after + [END] * (most - len(after))))
    return _longest(around, context[-LOOK_BACK:].tolist())


def _occurrences(context: np.ndarray, count: int) -> list[int]:
    """Where its last one or two tokens end before: the newest `PLACES`, those first."""
    found = context[count - 1 : -1] == context[-1]
    if count == 2:
        found &= context[:-2] == context[-2]
    return (np.flatnonzero(found)[: -PLACES - 1 : -1] + count).tolist()


def _in_answers(context: np.ndarray, recent: RecentText | None, most: int) -> Found:
    if recent is None:
        return [], 0
    places = recent.found(int(context[-2]), int(context[-1]), PLACES, LOOK_BACK)
    if not len(places):
        return [], 0
    rows = recent.at(places[:, None] + np.arange(1 - LOOK_BACK, most + 1)).tolist()
    return _longest([(row[:LOOK_BACK], row[LOOK_BACK:]) for row in rows], context[-LOOK_BACK:].tolist())


def _longest(around: Sequence[tuple[list[int], list[int]]], ending: list[int]) -> Found:
    """Of places, each with the tokens before and after it, those that match the ending furthest back."""
    found: list[list[int]] = []
    longest = 1
    for before, after in around:
        matched = 0
        for token, own in zip(reversed(before), reversed(ending), strict=False):
            if token != own:
                break
            matched += 1
        if matched > longest:
            found, longest = [after], matched
        elif matched == longest:
            found.append(after)
    return found, longest if found else 0


def _kind(matched: int, agreement: float) -> int:
    return bisect_right(LENGTHS, matched) * (len(AGREEMENTS) + 1) + bisect_right(AGREEMENTS, agreement)
