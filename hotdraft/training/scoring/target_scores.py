"""Teacher forcing: what a model thinks of tokens that it did not write."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from hotdraft.pipeline.replay.sample import MIN_LOG_MASS, NOT_DRAFTED, ReplaySample
from hotdraft.training.batches.packing import grouped, pack
from hotdraft.training.scoring.forward import OutputHead, hidden_states

ROWS_PER_CHUNK = 64
"""Rows widened to float32 at a time, see `training.scoring.losses`."""


@dataclass(frozen=True, slots=True)
class ScoredText:
    """Tokens to be scored, from wherever they came."""

    request_id: str
    domain: str
    temperature: float
    """What they were sampled at; 1 for text."""
    prompt_ids: np.ndarray
    """int32 [P], P >= 1: seen and not scored."""
    output_ids: np.ndarray
    """int32 [N], N >= 1: each is scored given all tokens before it."""


def score(
    target: PreTrainedModel,
    texts: Iterable[ScoredText],
    top_k: int,
    batch_tokens: int,
    vocab_size: int | None = None,
) -> Iterator[ReplaySample]:
    """The target's `top_k` log-probs and tail at every output position, in the order of `texts`.

    As the decoder logs them (temperature 1, unfiltered), over the first `vocab_size` tokens if that is given.
    Texts are packed to about `batch_tokens` tokens a forward; a longer one gets a forward of its own. Raises
    `DataError` for a text without a prompt or output.
    """
    for group in grouped(map(_unscored, texts), batch_tokens):
        yield from _score_pack(target, group, top_k, vocab_size)


@torch.inference_mode()
def _score_pack(
    target: PreTrainedModel, group: list[ReplaySample], top_k: int, vocab_size: int | None
) -> list[ReplaySample]:
    batch = pack(group)
    hidden = hidden_states(target, batch.on(target.device))
    head = OutputHead(target)
    chunks = [_log(head(rows)[:, :vocab_size].float(), top_k) for rows in hidden.split(ROWS_PER_CHUNK)]
    ids, logprobs, tail = (torch.cat(column).cpu().numpy() for column in zip(*chunks, strict=True))
    ends = np.cumsum([len(sample.output_ids) for sample in group])[:-1]
    parts = zip(group, np.split(ids, ends), np.split(logprobs, ends), np.split(tail, ends), strict=True)
    return [
        replace(sample, target_top_ids=ids, target_top_logprobs=logprobs, target_tail_logprob=tail)
        for sample, ids, logprobs, tail in parts
    ]


def _log(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids int32 [R, K], log-probs float16 [R, K] and log tail mass float32 [R] of float32 logits [R, V]."""
    top = logits.topk(min(top_k, logits.shape[-1]), dim=-1)
    logprobs = top.values - logits.logsumexp(-1, keepdim=True)
    tail = (1 - logprobs.double().exp().sum(-1)).clamp_min(0).log().clamp_min(MIN_LOG_MASS).float()
    return top.indices.int(), logprobs.half(), tail


def _unscored(text: ScoredText) -> ReplaySample:
    length = len(text.output_ids)
    return ReplaySample(
        request_id=text.request_id,
        created_at=time.time(),
        domain=text.domain,
        temperature=text.temperature,
        prompt_ids=text.prompt_ids,
        output_ids=text.output_ids,
        target_top_ids=np.zeros((length, 0), np.int32),
        target_top_logprobs=np.zeros((length, 0), np.float16),
        target_tail_logprob=np.zeros(length, np.float32),
        drafted_ids=np.full(length, NOT_DRAFTED, np.int32),
        accepted=np.zeros(length, bool),
        draft_versions=np.zeros(length, np.int32),
    )
