"""Second choices of a draft: if one of them comes in a refused token's place, the target has read it already.

A proposal is a chain, and its alternatives are leaves beside it, so that what is verified is a token tree
(SpecInfer, Miao et al., 2024; EAGLE-2, Li et al., 2024) of a form that costs the draft no further pass. They change
nothing of rejection sampling: the token that follows a refused one is drawn as ever, and if it is among the
alternatives of that position, the target's distribution after it is known and gives another token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hotdraft.pipeline.system.transfer import sent


@dataclass(frozen=True)
class Alternatives:
    """Of B rows up to n tokens each, likeliest first."""

    token_ids: Tensor
    """int64 [B, n]."""
    positions: Tensor
    """int64 [B, n]: which proposed token each would replace."""
    counts: Tensor
    """int64 [B, 1]: a row's first ones that count."""

    @classmethod
    def likeliest(
        cls, token_ids: Tensor, chances: Tensor, num_drafted: Tensor, most: Sequence[int]
    ) -> "Alternatives":
        """The likeliest to come beside chains of K tokens, of which num_drafted [B] count; up to `most` a row.

        token_ids [B, K, R] are the draft's next best; chances [B, K, 1 + R] its own, of the drafted token first.
        """
        drafted = torch.arange(token_ids.shape[1], device=token_ids.device) < num_drafted[:, None]
        reached = chances[..., 0].cumprod(1).roll(1, 1)
        reached[:, 0] = 1
        scores = (reached[..., None] * chances[..., 1:]).nan_to_num(0)
        scores = scores.masked_fill_(~drafted[..., None], 0).flatten(1)
        scores, places = scores.topk(min(max(most), scores.shape[1]))
        return cls(
            token_ids.flatten(1).gather(1, places),
            places // token_ids.shape[2],
            torch.minimum((scores > 0).sum(1, keepdim=True), sent(most, torch.int64, scores.device)[:, None]),
        )

    def after(self, num_guessed: Tensor) -> "Alternatives":
        """Behind num_guessed [B, 1] other proposed tokens."""
        return Alternatives(self.token_ids, self.positions + num_guessed, self.counts)

    def find(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """Which of a row's alternatives is the token [B, 1] at the proposed position [B, 1]; -1: none. [B, 1]."""
        index = torch.arange(self.token_ids.shape[1], device=token_ids.device)
        same = (self.token_ids == token_ids) & (self.positions == positions) & (index < self.counts)
        return torch.where(same.any(1, keepdim=True), same.long().argmax(1, keepdim=True), -1)


def next_best(logits: Tensor, drafted: Tensor, ranks: int, vocabulary: Tensor | None) -> tuple[Tensor, Tensor]:
    """The up to `ranks` likeliest tokens [B, R] beside drafted [B, 1], and chances [B, 1 + R], its own first.

    By logits [B, 1, N], of the tokens of `vocabulary` [N], ascending, if that is given.
    """
    ranks = min(ranks, logits.shape[-1] - 1)
    probs = logits[:, 0].float().softmax(-1)
    column = drafted
    if vocabulary is not None:
        column = torch.searchsorted(vocabulary, drafted).clamp_max(len(vocabulary) - 1)
    own = probs.gather(1, column)
    chances, columns = probs.scatter(1, column, 0.0).topk(ranks)
    return columns if vocabulary is None else vocabulary[columns], torch.cat([own, chances], 1)
