"""The door of whatever proposes tokens for the target to verify."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from hotdraft.serving.proposers.plan import ProposalPlan
from hotdraft.serving.proposers.row_proposal import RowProposal
from hotdraft.serving.sampling.logits import SamplingBatch
from hotdraft.serving.sampling.proposal import Proposal


class Proposer(Protocol):
    """Proposes for the rows of the slots it was made over. Whatever it proposes costs speed, never correctness."""

    stops_early: bool
    """Whether `propose_greedily` is there, which proposes less than planned where more is not worth its cost."""

    def load(self, row: int, same: np.ndarray) -> None:
        """A request begins in a row; `same` [num_slots] is what `Slots.load` returned."""
        ...

    def unread(self, row: int) -> int:
        """Committed tokens of a row that it has yet to read before it proposes well."""
        ...

    def advance(self, row: int, budget: int) -> None:
        """Read up to `budget` of them."""
        ...

    def read_together(self, rows: slice) -> None:
        """Read all of them, of rows that follow one another."""
        ...

    def catch_up(self, rows: Iterable[int], budget: int) -> list[int]:
        """Read some `budget` tokens of each of the rows it is far behind in; those in which it still is."""
        ...

    def rewind(self, row: int, length: int) -> None:
        """A row's tokens from `length` on were forgotten."""
        ...

    def move(self, source: int, destination: int) -> None:
        """A row is copied over another."""
        ...

    def discard(self, slot: int) -> None:
        """Forget what is known of a row: it may be no numbers."""
        ...

    def propose(self, plan: ProposalPlan, sampling: SamplingBatch) -> Proposal:
        """What was guessed, and behind it up to as many tokens for each of the first rows as are asked of it."""
        ...

    def propose_greedily(self, plan: ProposalPlan) -> list[RowProposal]:
        """The same where all rows are greedy, in plain numbers."""
        ...

    def observe(
        self, plan: ProposalPlan, num_proposed: Sequence[int], num_accepted: Sequence[int], sound: np.ndarray
    ) -> None:
        """What became of a proposal: its accepted tokens, which the slots hold by now, and its `sound` [B]."""
        ...
