"""The door of whatever proposes tokens for the target to verify."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hotdraft.serving.sampling.distributions import Distributions
from hotdraft.serving.sampling.logits import SamplingBatch


@dataclass(frozen=True)
class Proposal:
    """What is proposed for B rows."""

    token_ids: Tensor
    """int64 [B, k], of which a row's first `num_drafted` count."""
    num_drafted: Tensor
    """int64 [B]: 0..k."""
    distributions: Distributions | None
    """What the tokens were drawn from; None if they were chosen, see `is_chosen`."""
    sound: Tensor
    """bool [B, 1]: whether all of the proposer's logits were, if it has any."""

    @classmethod
    def nothing(cls, rows: int, device: torch.device) -> "Proposal":
        """k = 0."""
        token_ids = torch.zeros(rows, 0, dtype=torch.int64, device=device)
        sound = torch.ones(rows, 1, dtype=torch.bool, device=device)
        return cls(token_ids, token_ids.new_zeros(rows), None, sound)

    @property
    def k(self) -> int:
        return self.token_ids.shape[1]

    @property
    def is_chosen(self) -> bool:
        """Whether each token was the only one that could come, as of greedy and seeded rows: none was drawn."""
        return self.distributions is None

    def drafted(self) -> Tensor:
        """bool [B, k]: whether a token counts."""
        return torch.arange(self.k, device=self.token_ids.device) < self.num_drafted[:, None]


class Proposer(Protocol):
    """Proposes for the rows of the slots it was made over. Whatever it proposes costs speed, never correctness."""

    def load(self, row: int, same: np.ndarray) -> None:
        """A request begins in a row; `same` [num_slots] is what `Slots.load` returned."""
        ...

    def unread(self, row: int) -> int:
        """Committed tokens of a row that it has yet to read before it proposes well."""
        ...

    def advance(self, row: int, budget: int) -> None:
        """Read up to `budget` of them."""
        ...

    def catch_up(self, rows: int, budget: int) -> bool:
        """Read some `budget` tokens of each of the first rows it is far behind in; True if there is none now."""
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

    def propose(self, rows: int, k: int, sampling: SamplingBatch) -> Proposal:
        """Up to k > 0 tokens for each of the first rows."""
        ...

    def observe(self, proposal: Proposal, num_accepted: Sequence[int], sound: np.ndarray) -> None:
        """What became of a proposal: its accepted tokens, which the slots hold by now, and its `sound` [B]."""
        ...
