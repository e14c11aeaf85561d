"""What is proposed for the target to verify."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hotdraft.serving.sampling.alternatives import Alternatives
from hotdraft.serving.sampling.distributions import Distributions


@dataclass(frozen=True)
class Proposal:
    """Tokens for B rows."""

    token_ids: Tensor
    """int64 [B, k], of which a row's first `num_drafted` count."""
    num_drafted: Tensor
    """int64 [B]: 0..k."""
    distributions: Distributions | None
    """What the tokens were drawn from; None if each was the only one that could come, as of greedy
    and seeded rows."""
    sound: Tensor
    """bool [B, 1]: whether all of the proposer's logits were, if it has any."""
    num_guessed: Tensor | None = None
    """int64 [B, 1]: a row's first tokens that no distribution proposed; None: no row has any."""
    alternatives: Alternatives | None = None
    """Tokens for the target to read as well."""

    @classmethod
    def of_guesses(cls, token_ids: Tensor, num_guessed: Tensor) -> "Proposal":
        """Of token_ids [B, k] each row's first num_guessed [B, 1]."""
        return cls(token_ids, num_guessed[:, 0], None, torch.ones_like(num_guessed, dtype=torch.bool))

    def after_guesses(self, token_ids: Tensor, num_guessed: Tensor) -> "Proposal":
        """With the first num_guessed [B, 1] of token_ids [B, k] before a row's own."""
        position = torch.arange(token_ids.shape[1], device=token_ids.device)
        own = (position - num_guessed).clamp(0, self.k - 1)
        return Proposal(
            torch.where(position < num_guessed, token_ids, self.token_ids.gather(1, own)),
            num_guessed[:, 0] + self.num_drafted,
            None if self.distributions is None else self.distributions.picked(own),
            self.sound,
            num_guessed,
            None if self.alternatives is None else self.alternatives.after(num_guessed),
        )

    @property
    def k(self) -> int:
        return self.token_ids.shape[1]

    @property
    def was_drawn(self) -> Tensor | None:
        """bool [B, k]: whether a token was drawn from its distribution; None if all were."""
        if self.num_guessed is None:
            return None
        return torch.arange(self.k, device=self.token_ids.device) >= self.num_guessed

    @property
    def drafted(self) -> Tensor:
        """bool [B, k]: whether a token counts."""
        return torch.arange(self.k, device=self.token_ids.device) < self.num_drafted[:, None]
