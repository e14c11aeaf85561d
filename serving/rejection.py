"""Speculative rejection sampling, a pure function.

Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023), algorithm 1;
Chen et al., "Accelerating Large Language Model Decoding with Speculative Sampling" (2023).
"""

from dataclasses import dataclass

import torch

from serving.logits import sample


@dataclass(frozen=True)
class Verification:
    num_accepted: torch.Tensor
    """int64 [B]: drafted tokens accepted, 0..k."""
    next_token: torch.Tensor
    """int64 [B]: the recovered token after a rejection, or the bonus token after k acceptances."""


def rejection_sample(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    draft_ids: torch.Tensor,
    accept_noise: torch.Tensor,
    recover_noise: torch.Tensor,
) -> Verification:
    """Tokens distributed exactly as the target's, whatever the draft proposed.

    A drafted token x is accepted if noise < target_probs[x] / draft_probs[x]. At the first
    rejection a token is drawn from max(target_probs - draft_probs, 0), normalised; where that
    vanishes (equal distributions, rounding) from the target's own distribution.

    Shapes: target_probs [B, k+1, V]; draft_probs [B, k, V], exactly what `draft_ids` [B, k] were
    drawn from; accept_noise [B, k] and recover_noise [B, k+1] uniform in [0, 1).
    """
    batch, k = draft_ids.shape
    at_target = target_probs[:, :k].gather(-1, draft_ids[..., None]).squeeze(-1)
    at_draft = draft_probs.gather(-1, draft_ids[..., None]).squeeze(-1)
    accepted = accept_noise * at_draft < at_target
    num_accepted = accepted.long().cumprod(-1).sum(-1)

    row = torch.arange(batch, device=draft_ids.device)
    target_at_end = target_probs[row, num_accepted]
    no_draft = draft_probs.new_zeros(batch, 1, draft_probs.shape[-1])
    draft_at_end = torch.cat([draft_probs, no_draft], 1)[row, num_accepted]
    residual = (target_at_end - draft_at_end).clamp_min(0)
    vanished = residual.sum(-1, keepdim=True) <= 0
    residual = torch.where(vanished, target_at_end, residual)
    return Verification(num_accepted, sample(residual, recover_noise[row, num_accepted]))


def match_greedy(target_ids: torch.Tensor, draft_ids: torch.Tensor) -> Verification:
    """`rejection_sample` where both models are greedy: one-hot distributions make it token equality.

    Shapes: target_ids [B, k+1], the target's argmax at each position; draft_ids [B, k].
    """
    num_accepted = (target_ids[:, :-1] == draft_ids).long().cumprod(-1).sum(-1)
    return Verification(num_accepted, target_ids.gather(1, num_accepted[:, None]).squeeze(1))
