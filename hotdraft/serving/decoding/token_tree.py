"""Proposed tokens and their alternatives as the target reads them in one forward: a chain with leaves.

A row's alternatives are fed behind its chain, at the positions of the tokens that they would replace. Each sees
what is before its position, which is the chain up to there, and itself.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from hotdraft.serving.sampling.proposal import Proposal


class TokenTree(NamedTuple):
    """Of B rows up to Q tokens each."""

    token_ids: Tensor
    """int64 [B, Q]: the last committed token, those that were proposed, their alternatives."""
    positions: Tensor
    """int64 [B, Q]."""
    keys: Tensor | None
    """int64 [B, Q], see `Window`; None where there are no alternatives."""
    counts: Tensor | None
    """int32 [B]: a row's first tokens, which matter; None: all do."""

    @classmethod
    def of(cls, last: Tensor, drawn_at: Tensor, proposal: Proposal) -> "TokenTree":
        """Behind rows whose last token is `last` [B, 1], for tokens that come to positions drawn_at [B, k+1]."""
        k, alternatives = proposal.k, proposal.alternatives
        chain = torch.cat([last, proposal.token_ids], 1)
        positions = drawn_at - 1
        if alternatives is None:
            return cls(chain, positions, None, None if k == 0 else (1 + proposal.num_drafted).int())
        end = 1 + proposal.num_drafted[:, None]
        counts = end + alternatives.counts
        number = alternatives.token_ids.shape[1]
        width = max(int(counts.max()), k + 1) if last.device.type == "cpu" else k + 1 + number
        column = torch.arange(width, device=last.device)
        index = torch.where(column < end, column, k + 1 + column - end).clamp_max(k + number)
        return cls(
            torch.cat([chain, alternatives.token_ids], 1).gather(1, index),
            torch.cat([positions, drawn_at[:, :1] + alternatives.positions], 1).gather(1, index),
            positions[:, :1] + column,
            counts[:, 0].int(),
        )
