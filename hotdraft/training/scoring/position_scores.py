"""The loss over supervised positions, chunk by chunk, with its gradient computed on the way."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hotdraft.pipeline.config.learning import LossName
from hotdraft.pipeline.replay.sample import MIN_LOG_MASS
from hotdraft.training.batches.packing import PackedBatch
from hotdraft.training.batches.sampling import sampled_target
from hotdraft.training.scoring.forward import OutputHead
from hotdraft.training.scoring.losses import distillation_loss, overlap_and_agreement

ChunkLoss = Callable[[Tensor, slice], Tensor]


class PositionScores(NamedTuple):
    """What N supervised positions say of a draft."""

    loss: Tensor
    """[]: the loss, summed over the positions by their weights; differentiable."""
    overlap: Tensor | None
    """float [N]: chance that a token drafted as the request was sampled is accepted, at temperature 1 if it was
    greedy; None if not measured."""
    agreement: Tensor | None
    """float [N]: 1 where the likeliest tokens agree, else 0; None if not measured."""


def position_scores(
    hidden: Tensor,
    head: OutputHead,
    *,
    batch: PackedBatch,
    loss: LossName,
    measure: bool,
    greedy_temperature: float = 1.0,
) -> PositionScores:
    """Scores of the states `hidden` [N, H]; no more than a chunk of logits exists at a time.

    The draft learns at the temperature and behind the filters that the request was sampled with, as it will draft.
    Where the request was greedy it learns the target's distribution at `greedy_temperature`: only its likeliest
    token will be accepted there, and what follows it matters less. The tail is cooled as one token, and so keeps
    more mass than its many would.

    With a trimmed head the draft learns the target's distribution among what it can draft at all, and a position
    weighs as much less as the target has mass elsewhere: up to a constant that is forward KL over what is shared.
    """
    overlap: list[Tensor] = []
    agreement: list[Tensor] = []
    columns, sampling, greedy = head.places(batch.top_ids), batch.sampling, batch.temperature == 0
    tail = batch.tail_logprob.clamp_min(MIN_LOG_MASS)
    top, tail = sampled_target(batch.top_logprobs, tail, sampling, head.vocab_size)
    learned, weight = top, batch.weight
    if head.is_trimmed:
        learned = learned.masked_fill(~head.knows(batch.top_ids), -torch.inf)
        tail = torch.where((learned == -torch.inf).all(1), tail.clamp_min(MIN_LOG_MASS), tail)
        weight = weight * torch.cat([learned, tail[:, None]], 1).logsumexp(1).exp()
    cooled = torch.where(greedy, greedy_temperature, 1.0)
    learned, learned_tail = learned / cooled[:, None], tail / cooled  # normalised by the loss

    def weighted_loss(part: Tensor, rows: slice) -> Tensor:
        logits = head(part)
        sampled = sampling.at(rows)
        if measure:
            both = overlap_and_agreement(logits.detach(), columns[rows], top[rows], tail[rows], sampled)
            overlap.append(both[0])
            agreement.append(both[1])
        value = distillation_loss(
            logits, columns[rows], learned[rows], learned_tail[rows], loss=loss, sampling=sampled
        )
        return (value * weight[rows]).sum()

    chunks = head.chunks(len(hidden))
    if torch.is_grad_enabled():
        total: Tensor = _ChunkedSum.apply(hidden, chunks, weighted_loss, *head.trainable)
    else:
        total = torch.stack([weighted_loss(hidden[rows], rows) for rows in chunks]).sum()
    if not measure:
        return PositionScores(total, None, None)
    return PositionScores(total, torch.cat(overlap), torch.cat(agreement))


class _ChunkedSum(torch.autograd.Function):
    """`sum(function(hidden[rows], rows) for rows in chunks)`, differentiable in `hidden` and `parameters`.

    Each chunk's gradient is taken as soon as its value is known, and its logits are forgotten: nothing is
    computed twice, as it would be under checkpointing (Hsu et al., 2024, Liger Kernel). That works since
    a sum hands every chunk the same gradient, by which the backward pass only multiplies.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, chunks: list[slice], function: ChunkLoss, *parameters: Tensor) -> Tensor:
        gradient = torch.empty_like(hidden)
        parameter_gradients = [torch.zeros_like(parameter) for parameter in parameters]
        sums = []
        for rows in chunks:
            part = hidden[rows].detach().requires_grad_()
            with torch.enable_grad():
                value = function(part, rows)
            with torch.autocast(hidden.device.type, enabled=False):  # as in any backward pass
                gradient[rows], *others = torch.autograd.grad(value, [part, *parameters])
            for total, other in zip(parameter_gradients, others, strict=True):
                total += other
            sums.append(value.detach())
        ctx.save_for_backward(gradient, *parameter_gradients)
        return torch.stack(sums).sum()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        gradient, *others = ctx.saved_tensors
        scaled = (gradient.to(grad_output.dtype) * grad_output).to(gradient.dtype)
        return scaled, None, None, *(other * grad_output for other in others)
