"""Speculative rejection sampling, a pure function.

Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023), algorithm 1;
Chen et al., "Accelerating Large Language Model Decoding with Speculative Sampling" (2023).
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import one_hot

from hotdraft.serving.sampling.distributions import Distributions, sample


@dataclass(frozen=True)
class Verification:
    num_accepted: torch.Tensor
    """int64 [B]: drafted tokens accepted."""
    next_token: torch.Tensor
    """int64 [B]: the recovered token after a rejection, or the bonus token where all were accepted."""

    def replaced(self, other: "Verification", rows: slice | torch.Tensor) -> "Verification":
        """With some rows of another."""
        num_accepted, next_token = self.num_accepted.clone(), self.next_token.clone()
        num_accepted[rows], next_token[rows] = other.num_accepted[rows], other.next_token[rows]
        return Verification(num_accepted, next_token)


def rejection_sample(
    target: Distributions,
    draft: Distributions | None,
    draft_ids: torch.Tensor,
    drafted: torch.Tensor,
    accept_noise: torch.Tensor,
    recover_noise: torch.Tensor,
    was_drawn: torch.Tensor | None = None,
) -> Verification:
    """Tokens distributed exactly as the target's, whatever the draft proposed.

    A drafted token x is accepted if noise < target_probs[x] / draft_probs[x]. At the first
    rejection a token is drawn from max(target_probs - draft_probs, 0), normalised; where that
    vanishes (equal distributions, rounding) from the target's own distribution.

    Shapes: target of k+1 tokens; draft of k, exactly what `draft_ids` [B, k] were drawn from, None where they
    were chosen, which is to have drawn them with probability 1; bool `drafted` [B, k], true of each row's first
    tokens that count; accept_noise [B, k] and recover_noise [B, k+1] uniform in [0, 1). bool `was_drawn` [B, k] is
    false where a token was chosen though the draft has a distribution there; None: nowhere.
    """
    batch, k = draft_ids.shape
    row = torch.arange(batch, device=draft_ids.device)
    if k == 0:
        num_accepted = torch.zeros_like(row)
        return Verification(num_accepted, sample(target.probs_at(num_accepted), recover_noise[:, 0]))
    needed = accept_noise
    if draft is not None:
        draft_probs = draft.probs_of(draft_ids)
        needed = accept_noise * (draft_probs if was_drawn is None else torch.where(was_drawn, draft_probs, 1.0))
    num_accepted = _count_first(drafted & (needed < target.probs_of(draft_ids)))

    target_at_end, last = target.probs_at(num_accepted), num_accepted.clamp_max(k - 1)
    draft_at_end = _draft_probs_at(last, draft, draft_ids, was_drawn, target.vocab_size)
    draft_at_end = draft_at_end.masked_fill_((num_accepted == drafted.sum(-1))[:, None], 0)
    residual = (target_at_end - draft_at_end).clamp_min_(0)
    vanished = residual.sum(-1, keepdim=True) <= 0
    residual = torch.where(vanished, target_at_end, residual)
    return Verification(num_accepted, sample(residual, recover_noise[row, num_accepted]))


def _draft_probs_at(
    position: torch.Tensor,
    draft: Distributions | None,
    draft_ids: torch.Tensor,
    was_drawn: torch.Tensor | None,
    vocab_size: int,
) -> torch.Tensor:
    """What the token at `position` [B] of each row was drawn from, [B, V]."""
    drawn = None if draft is None else draft.probs_at(position)
    if drawn is not None and was_drawn is None:
        return drawn
    row = torch.arange(len(position), device=position.device)
    chosen = one_hot(draft_ids[row, position], vocab_size).float()
    return (
        chosen
        if drawn is None or was_drawn is None
        else torch.where(was_drawn[row, position][:, None], drawn, chosen)
    )


def match(target_ids: torch.Tensor, draft_ids: torch.Tensor, drafted: torch.Tensor) -> Verification:
    """`rejection_sample` where both models are greedy or seeded: one-hot distributions make it token equality.

    Shapes: target_ids [B, k+1], the target's choice at each position; draft_ids and bool `drafted` [B, k].
    """
    num_accepted = _count_first(drafted & (target_ids[:, :-1] == draft_ids))
    return Verification(num_accepted, target_ids.gather(1, num_accepted[:, None]).squeeze(1))


def _count_first(held: torch.Tensor) -> torch.Tensor:
    """How many of bool [B, k] hold before the first that does not."""
    return held.long().cumprod(-1).sum(-1)
