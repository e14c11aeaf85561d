"""What a draft would be worth on logged traffic, without serving it."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.training.batches.packing import grouped, pack
from hotdraft.training.batches.sampling import sampled_target
from hotdraft.training.scoring.forward import OutputHead, states_by_step
from hotdraft.training.scoring.kept_prompts import KeptPrompts
from hotdraft.training.scoring.losses import expected_acceptance

PASS_TOKENS = 4096
"""Of a forward pass at least: without gradient it has room for more than a step, and small ones are slow."""


def by_request(chances: Sequence[np.ndarray]) -> np.ndarray:
    """Mean chance [R] of each request's positions."""
    return np.array([of_request.mean() for of_request in chances])


@torch.no_grad()
def expected_acceptance_by_position(
    model: PreTrainedModel, samples: Sequence[ReplaySample], *, batch_tokens: int, vocabulary: Tensor | None = None
) -> list[np.ndarray]:
    """Chance [N] that a drafted token is accepted, at each of the N output positions of each sample.

    At the temperature and behind the filters each request was served with, `over_steps` of a round. Samples
    are packed to about `batch_tokens` tokens, `PASS_TOKENS` at least, a longer one gets a forward of its own.
    `vocabulary` (int64 [N]) is what the draft's head covers: nothing else can be drafted; None is everything. Not
    for NF4 models that will train again: see `training.fit.lora`.
    """
    model.eval()
    head, prompts = OutputHead(model, vocabulary), KeptPrompts(1)
    groups = grouped(samples, max(batch_tokens, PASS_TOKENS))
    return [chances for group in groups for chances in _by_position(model, head, prompts, group)]


def _by_position(
    model: PreTrainedModel, head: OutputHead, prompts: KeptPrompts, group: Sequence[ReplaySample]
) -> list[np.ndarray]:
    batch = pack(group).on(model.device)
    sampling = batch.sampling
    top, tail = sampled_target(batch.top_logprobs, batch.tail_logprob, sampling, head.vocab_size)
    by_step = []
    for hidden in states_by_step(model, batch, prompts):
        parts = []
        for rows in head.chunks(len(hidden)):
            targets = (head.places(batch.top_ids[rows]), top[rows], tail[rows])
            parts.append(expected_acceptance(head(hidden[rows]), *targets, sampling.at(rows)))
        by_step.append(torch.cat(parts))
    chances = torch.stack(by_step).double().cpu().numpy()
    ends = np.cumsum(np.bincount(batch.request.cpu().numpy()))[:-1]
    return [over_steps(of_request) for of_request in np.split(chances, ends, axis=1)]


def over_steps(chances: np.ndarray) -> np.ndarray:
    """Chance [N] at a request's positions from those of each step of a round [S, N].

    A step counts at a position by how often a round that begins so many positions before comes that far.
    """
    reached = np.ones_like(chances)
    for step in range(1, len(chances)):
        reached[step, 0] = 0
        reached[step, 1:] = (reached * chances)[step - 1, :-1]
    return (reached * chances).sum(0) / reached.sum(0)
