"""What a draft would be worth on logged traffic, without serving it."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.records import ReplaySample
from training.data import PackedBatch, pack
from training.losses import expected_acceptance
from training.module import draft_logits


@torch.no_grad()
def expected_acceptance_by_request(
    model: PreTrainedModel, samples: Sequence[ReplaySample], *, batch_tokens: int, vocabulary: Tensor | None = None
) -> np.ndarray:
    """Mean chance [R] that a drafted token is accepted, over the output positions of each sample.

    At the temperature each request was served with; samples are packed to about `batch_tokens` tokens
    and cut to at most that many. `vocabulary` (int64 [N]) is what the draft's head covers: nothing else
    can be drafted; None is everything. Not for NF4 models that will train again: see `training.lora`.
    """
    device = next(model.parameters()).device
    model.eval()
    scores = [
        _pack_scores(model, group, batch_tokens, device, vocabulary) for group in _groups(samples, batch_tokens)
    ]
    return np.concatenate(scores) if scores else np.zeros(0)


def _pack_scores(
    model: PreTrainedModel,
    group: Sequence[ReplaySample],
    batch_tokens: int,
    device: torch.device,
    vocabulary: Tensor | None,
) -> np.ndarray:
    batch = PackedBatch(*(tensor.to(device) for tensor in pack(group, max_length=batch_tokens)))
    logits = draft_logits(model, batch)
    if vocabulary is not None:
        outside = torch.ones(logits.shape[-1], dtype=torch.bool, device=device)
        outside[vocabulary.to(device)] = False
        logits = logits.masked_fill(outside, -torch.inf)
    expected = expected_acceptance(logits, batch.top_ids, batch.top_logprobs, batch.tail_logprob, batch.temperature)
    request = batch.request.cpu().numpy()
    sums = np.bincount(request, weights=expected.double().cpu().numpy(), minlength=len(group))
    return sums / np.bincount(request, minlength=len(group))


def _groups(samples: Sequence[ReplaySample], batch_tokens: int) -> list[list[ReplaySample]]:
    groups: list[list[ReplaySample]] = []
    room = 0
    for sample in samples:
        length = len(sample.prompt_ids) + len(sample.output_ids) - 1
        if length > room:
            groups.append([])
            room = batch_tokens
        groups[-1].append(sample)
        room -= length
    return groups
