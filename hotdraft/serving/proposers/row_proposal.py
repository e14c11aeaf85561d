"""What is proposed for one greedy row, in plain numbers: a CPU compares them in less time than it makes tensors."""

from collections.abc import Sequence
from heapq import nlargest
from typing import NamedTuple


class Alternative(NamedTuple):
    """See `Alternatives`."""

    position: int
    """Which proposed token it would replace."""
    token_id: int


class RowProposal(NamedTuple):
    token_ids: list[int]
    num_guessed: int
    """Of them the first ones, which no model proposed."""
    alternatives: Sequence[Alternative] = ()
    """Likeliest first."""
    sound: bool = True
    """Whether all of the proposer's logits were, if it has any."""


def likeliest(
    others: Sequence[Sequence[int]], chances: Sequence[Sequence[float]], most: int, num_guessed: int
) -> list[Alternative]:
    """`Alternatives.likeliest` of one row, behind `num_guessed` other tokens.

    Of each drafted token others [K, R] are the draft's next best; chances [K, 1 + R] its own, of the token first.
    """
    found, reached = [], 1.0
    for position, (token_ids, (own, *beside)) in enumerate(zip(others, chances, strict=True), num_guessed):
        scores = [reached * chance for chance in beside]
        found += [(score, -position, token) for score, token in zip(scores, token_ids, strict=True) if score > 0]
        reached *= own
    return [Alternative(-before, token) for _, before, token in nlargest(most, found)]
