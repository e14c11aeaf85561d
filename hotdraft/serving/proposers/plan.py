"""Who is to propose how much in a round."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from hotdraft.pipeline.system.transfer import sent

Number = TypeVar("Number", int, float)


class OnDevice(NamedTuple):
    """A plan's numbers where tensors are computed."""

    guessed_ids: Tensor
    """int64 [B, k], 0 where nothing is guessed."""
    num_guessed: Tensor
    """int64 [B, 1]."""
    num_drafted: Tensor
    """int64 [B]."""


@dataclass(frozen=True)
class ProposalPlan:
    """Of each of B rows: tokens guessed from text, then so many that the draft model puts behind them."""

    guesses: Sequence[Sequence[int]]
    drafted: Sequence[int]
    floors: Sequence[float] | None = None
    """The chance that all of a row's drafted tokens are accepted, below which no more are worth their cost; None:
    all that is planned is drafted."""
    alternatives: Sequence[int] | None = None
    """Second choices beside what each row drafts, at most; None: there are none."""
    saved: Sequence[float] | None = None
    """Seconds that are expected to be saved by what each row drafts; None: nobody chose."""

    @classmethod
    def uniform(cls, rows: int, k: int, alternatives: int = 0) -> "ProposalPlan":
        """k drafted tokens in each row, and so many second choices."""
        return cls([()] * rows, [k] * rows, alternatives=[alternatives] * rows if alternatives else None)

    def without_drafts(self, rows: Set[int]) -> Self:
        """The same, but nothing is drafted for `rows`, and so nothing beside that, and nothing saved by it."""

        def left(of: Sequence[Number]) -> list[Number]:
            return [0 if row in rows else one for row, one in enumerate(of)]

        alternatives = None if self.alternatives is None else left(self.alternatives)
        saved = None if self.saved is None else left(self.saved)
        return replace(self, drafted=left(self.drafted), alternatives=alternatives, saved=saved)

    @property
    def rows(self) -> int:
        return len(self.drafted)

    @property
    def num_proposed(self) -> list[int]:
        """Of each row."""
        return [len(guess) + count for guess, count in zip(self.guesses, self.drafted, strict=True)]

    @property
    def k(self) -> int:
        """Tokens that the row with the most proposes."""
        return max(self.num_proposed)

    @property
    def most_alternatives(self) -> int:
        """Of the row with the most."""
        return max(self.alternatives or [0])

    def on(self, device: torch.device) -> OnDevice:
        """All of it in one copy, which takes as long as a small one."""
        most, rows = self.k, zip(self.guesses, self.drafted, strict=True)
        numbers = [[len(guess), count, *guess, *[0] * (most - len(guess))] for guess, count in rows]
        columns = sent(numbers, torch.int64, device)
        return OnDevice(columns[:, 2:], columns[:, :1], columns[:, 1])
