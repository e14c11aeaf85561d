"""Verifying a proposal: penalties, filters, and the noise of each row's seed, as they were drawn with."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hotdraft.serving.sampling.distributions import Distributions
from hotdraft.serving.sampling.logits import SamplingBatch
from hotdraft.serving.sampling.noise import NoiseStream, uniform
from hotdraft.serving.sampling.penalties import count_drafted, penalise
from hotdraft.serving.sampling.proposal import Proposal
from hotdraft.serving.sampling.rejection import match, rejection_sample
from hotdraft.serving.sampling.soundness import are_sound


@dataclass(frozen=True)
class Verified:
    """What the target makes of a proposal for B rows."""

    sound: Tensor
    """bool [B, 1]: whether its logits are; where not, nothing is accepted, and any token follows."""
    num_accepted: Tensor
    """int64 [B, 1]."""
    token_ids: Tensor
    """int64 [B, k+1]: the accepted tokens of a row, then the one that follows them."""


def verify(
    logits: Tensor, proposal: Proposal, positions: Tensor, sampling: SamplingBatch, counts: Tensor | None
) -> Verified:
    """The tokens that come, distributed exactly as the target would have them.

    Shapes: the target's float32 logits [B, k+1, V]; int64 positions [B, k+1], those that the tokens will have.
    `counts` [B, V] says how often each token was answered, if some row is penalised.
    """
    sound = are_sound(logits).all(1)
    if counts is not None:
        logits = penalise(logits, count_drafted(counts, proposal.token_ids), sampling)
    target = Distributions.of(logits, sampling)
    drafted_ids, drafted = proposal.token_ids, proposal.drafted
    if not sampling.all_chosen:
        seeds = sampling.seeds[:, None]
        accept_noise = uniform(seeds, positions[:, :-1], NoiseStream.ACCEPT)
        recover_noise = uniform(seeds, positions, NoiseStream.RECOVER)
        drawn_from = proposal.distributions
        verification = rejection_sample(
            target, drawn_from, drafted_ids, drafted, accept_noise, recover_noise, proposal.was_drawn
        )
    if sampling.chosen is not None:
        matched = match(target.choose(sampling, positions), drafted_ids, drafted)
        verification = matched if sampling.all_chosen else verification.replaced(matched, sampling.chosen)
    num_accepted, following = verification.num_accepted[:, None] * sound, verification.next_token[:, None]
    following = following.clamp_max(logits.shape[-1] - 1)  # none can be drawn from what is not sound
    accepted = positions - positions[:, :1] < num_accepted
    token_ids = torch.where(accepted, torch.cat([drafted_ids, following], 1), following)
    return Verified(sound, num_accepted, token_ids)
