"""Verifying a proposal: penalties, filters, and the noise of each row's seed, as they were drawn with."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hotdraft.serving.sampling.distributions import Distributions
from hotdraft.serving.sampling.logits import SamplingBatch
from hotdraft.serving.sampling.noise import NoiseStream, uniform
from hotdraft.serving.sampling.penalties import penalise
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
    came: Tensor | None = None
    """int64 [B, 1]: which alternative that one is, after which there is another token; -1: none."""

    @property
    def num_new(self) -> Tensor:
        """int64 [B, 1]."""
        return self.num_accepted + (1 if self.came is None else 1 + (self.came >= 0).long())


def verify(
    logits: Tensor, proposal: Proposal, positions: Tensor, sampling: SamplingBatch, counts: Tensor | None
) -> Verified:
    """The tokens that come, distributed exactly as the target would have them.

    Shapes: the target's float32 logits [B, k+1, V]; int64 positions [B, k+1], those that the tokens will have.
    `counts` [B, V] says how often each token was answered, if some row is penalised by that.
    """
    sound = are_sound(logits).all(1)
    if sampling.any_penalised:
        logits = penalise(logits, positions, counts, sampling, proposal.token_ids)
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


def follow(
    verified: Verified,
    logits: Tensor,
    proposal: Proposal,
    positions: Tensor,
    sampling: SamplingBatch,
    counts: Tensor | None,
    verifying: Callable[..., Verified] = verify,
) -> tuple[Verified, Tensor | None]:
    """With another token where the one that follows is an alternative, and the columns of the tokens' logits.

    Shapes: logits [B, Q, V] of the proposed tokens and, behind those that a row drafted, of its alternatives;
    columns int64 [B, k+1], None: the first ones; else as in `verify`, which `verifying` is.
    """
    assert proposal.alternatives is not None
    accepted, index = verified.num_accepted, positions - positions[:, :1]
    # what is no number stays in the row's keys, though nothing of it came
    verified = replace(verified, sound=verified.sound & are_sound(logits[:, positions.shape[1] :]).all(1))
    found = proposal.alternatives.find(verified.token_ids.gather(1, accepted), accepted)
    came = torch.where(verified.sound, found, -1)
    if came.device.type == "cpu" and not (came >= 0).any():
        return replace(verified, came=came), None
    column = 1 + proposal.num_drafted[:, None] + came
    if counts is not None:
        counts = counts.scatter_add(1, verified.token_ids, (index <= accepted).to(counts.dtype))
    nothing = Proposal.of_guesses(proposal.token_ids[:, :0], torch.zeros_like(accepted))
    after = logits.gather(1, column[..., None].expand(-1, -1, logits.shape[-1]))
    following = verifying(after, nothing, positions.gather(1, accepted) + 1, sampling, counts)
    is_next = (came >= 0) & (index == accepted + 1)
    return Verified(
        verified.sound & (following.sound | (came < 0)),
        accepted,
        torch.where(is_next, following.token_ids, verified.token_ids),
        came,
    ), torch.where(is_next, column, index)
