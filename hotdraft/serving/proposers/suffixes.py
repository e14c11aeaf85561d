"""Guessing tokens from text without a model: what followed when the last tokens came before.

Oliaro et al., "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications" (2024). Prompt lookup
(Saxena, 2023) is its case of a request's own text alone.
"""

from bisect import bisect_right
from collections import Counter
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


def guess(context: np.ndarray, recent: RecentText | None, most: int) -> Guess:
    """Up to `most` tokens after `context` [n]: from the places where most of its end came before.

    In the context itself, or in `recent` answers, which know of more than one way to go on.
    """
    if len(context) < 2 or most < 1:
        return NOTHING
    own, shared = _in_context(context, most), _in_answers(context, recent, most)
    places, matched = max(shared, own, key=lambda found: found[1])
    token_ids, kinds = [], []
    for step in range(most):
        if not places:
            break
        token, count = places[0][step], 1
        if len(places) > 1:
            [(token, count)] = Counter(place[step] for place in places).most_common(1)
        if token == END:
            break
        token_ids.append(token)
        kinds.append(_kind(matched + step, count / len(places)))
        if count < len(places):
            places = [place for place in places if place[step] == token]
    return Guess(tuple(token_ids), tuple(kinds))


Found = tuple[list[list[int]], int]
"""What followed at each place, and how many tokens before it matched."""


def _in_context(context: np.ndarray, most: int) -> Found:
    same = context[:-1] == context[-1]
    pairs = np.flatnonzero(same[1:] & (context[:-2] == context[-2])) + 1
    places = (pairs if len(pairs) else np.flatnonzero(same))[: -PLACES - 1 : -1]
    if not len(places):
        return [], 0
    around = places[:, None] + np.arange(1 - LOOK_BACK, most + 1)
    tokens = np.where(around < len(context), context[around.clip(0, len(context) - 1)], END)
    tokens[around < 0] = END
    return _longest(tokens, context)


def _in_answers(context: np.ndarray, recent: RecentText | None, most: int) -> Found:
    if recent is None:
        return [], 0
    places = recent.found(int(context[-2]), int(context[-1]), PLACES, LOOK_BACK)
    if not len(places):
        return [], 0
    return _longest(recent.at(places[:, None] + np.arange(1 - LOOK_BACK, most + 1)), context)


def _longest(tokens: np.ndarray, context: np.ndarray) -> Found:
    """Of tokens [places, LOOK_BACK + most] around places those that match the context furthest back."""
    end = context[-LOOK_BACK:]
    matched = (tokens[:, LOOK_BACK - len(end) : LOOK_BACK] == end)[:, ::-1].cumprod(1).sum(1)
    longest = int(matched.max())
    return tokens[matched == longest, LOOK_BACK:].tolist() if longest else [], longest


def _kind(matched: int, agreement: float) -> int:
    return bisect_right(LENGTHS, matched) * (len(AGREEMENTS) + 1) + bisect_right(AGREEMENTS, agreement)
