"""What is proposed for the target to verify."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hotdraft.serving.sampling.distributions import Distributions


@dataclass(frozen=True)
class Proposal:
    """Tokens for B rows."""

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

    @cached_property
    def drafted(self) -> Tensor:
        """bool [B, k]: whether a token counts."""
        return torch.arange(self.k, device=self.token_ids.device) < self.num_drafted[:, None]
