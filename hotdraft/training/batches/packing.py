"""Several requests packed in one row, and no padding.

A request's tokens see only their own request (see `training.scoring.packed_attention`) and count their positions
from 0, so that packing changes nothing but the speed.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.pipeline.system.transfer import moved
from hotdraft.training.batches.sampling import SAMPLED, Sampling


class DataError(ValueError):
    """Replay samples that cannot be trained on."""


class PackedBatch(NamedTuple):
    """R requests in one row of T tokens, with N supervised positions and K target tokens at each."""

    input_ids: Tensor
    """int64 [1, T]."""
    position_ids: Tensor
    """int64 [1, T]: from 0 in each request."""
    lengths: tuple[int, ...]
    """[R]: tokens of each request, T together."""
    prompts: tuple[bytes, ...]
    """Of each request the tokens before its first supervised position, as int64."""
    supervised: Tensor
    """int64 [N]: positions whose next token was emitted by the target."""
    request: Tensor
    """int64 [N]: index of the request, in packing order, that the supervised position belongs to."""
    top_ids: Tensor
    """int64 [N, K]."""
    top_logprobs: Tensor
    """float32 [N, K]."""
    tail_logprob: Tensor
    """float32 [N]."""
    temperature: Tensor
    """float32 [N]."""
    top_p: Tensor
    """float32 [N]."""
    top_k: Tensor
    """int64 [N]."""
    min_p: Tensor
    """float32 [N]."""
    any_filtered: bool
    """Whether some request has filters."""
    weight: Tensor
    """float32 [N]: loss weight."""
    step_weight: Tensor
    """float32 []: sum of `weight` over this process's batches of the optimiser step that this one belongs to."""
    prompts_ahead: tuple[bytes, ...] = ()
    """Those of batches that were drawn together with this one, which may be read together."""

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_p, self.top_k, self.min_p, self.any_filtered)

    def on(self, device: torch.device) -> Self:
        """This batch with its tensors on `device`, which is not waited for."""
        there: dict[str, Any] = {
            name: moved(part, device) for name, part in self._asdict().items() if isinstance(part, Tensor)
        }
        return self._replace(**there)


def pack(
    samples: Sequence[ReplaySample],
    *,
    max_length: int | None = None,
    rejected_weight: float = 1.0,
    undrafted_weight: float = 1.0,
) -> PackedBatch:
    """Pack `samples`, each cut to its first `max_length` tokens if that is given.

    Positions whose drafted token was rejected weigh `rejected_weight`, those that no round asked the draft for
    `undrafted_weight`, all others 1. Where samples keep different numbers of target tokens, all are cut to the
    fewest and the rest moves to the tail.
    Raises `DataError` for a sample whose prompt leaves no supervised position.
    """
    top_k = min(sample.target_top_ids.shape[1] for sample in samples)
    columns: dict[str, list[np.ndarray]] = {name: [] for name in PackedBatch._fields}
    lengths: list[int] = []
    prompts: list[bytes] = []
    start = 0
    for index, sample in enumerate(samples):
        tokens = sample.read_tokens[:max_length]
        first = len(sample.prompt_ids) - 1
        length = len(tokens)
        count = length - first
        if first < 0 or count <= 0:
            raise DataError(
                f"request {sample.request_id}: {len(sample.prompt_ids)} prompt tokens leave nothing to "
                f"learn within its first {length} tokens"
            )
        logprobs, tail = cut_top(sample, count, top_k)
        columns["input_ids"].append(tokens)
        columns["position_ids"].append(np.arange(length))
        lengths.append(length)
        prompts.append(tokens[:first].tobytes())
        columns["supervised"].append(start + first + np.arange(count))
        columns["request"].append(np.full(count, index))
        columns["top_ids"].append(sample.target_top_ids[:count, :top_k])
        columns["top_logprobs"].append(logprobs)
        columns["tail_logprob"].append(tail)
        for name in SAMPLED:
            columns[name].append(np.full(count, getattr(sample, name)))
        undrafted = np.where(sample.drafted_ids[:count] < 0, undrafted_weight, 1.0)
        columns["weight"].append(np.where(sample.rejected[:count], rejected_weight, undrafted))
        start += length

    def joined(name: str, dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(np.concatenate(columns[name])).to(dtype)

    weight = joined("weight", torch.float32)
    return PackedBatch(
        input_ids=joined("input_ids", torch.int64)[None],
        position_ids=joined("position_ids", torch.int64)[None],
        lengths=tuple(lengths),
        prompts=tuple(prompts),
        supervised=joined("supervised", torch.int64),
        request=joined("request", torch.int64),
        top_ids=joined("top_ids", torch.int64),
        top_logprobs=joined("top_logprobs", torch.float32),
        tail_logprob=joined("tail_logprob", torch.float32),
        temperature=joined("temperature", torch.float32),
        top_p=joined("top_p", torch.float32),
        top_k=joined("top_k", torch.int64),
        min_p=joined("min_p", torch.float32),
        any_filtered=any(s.temperature > 0 and (s.top_p < 1 or s.top_k > 0 or s.min_p > 0) for s in samples),
        weight=weight,
        step_weight=weight.sum(),
    )


def cut_top(sample: ReplaySample, count: int, top_k: int) -> tuple[np.ndarray, np.ndarray]:
    """Log-probs [N, K] and tail [N] of the first `count` positions, all but the first `top_k` in the tail."""
    logprobs = sample.target_top_logprobs[:count].astype(np.float32)
    tail = sample.target_tail_logprob[:count]
    if logprobs.shape[1] > top_k:
        tail = np.logaddexp(tail, np.logaddexp.reduce(logprobs[:, top_k:], axis=1))
    return logprobs[:, :top_k], tail


def grouped(samples: Iterable[ReplaySample], batch_tokens: int) -> Iterator[list[ReplaySample]]:
    """`samples` in order, in groups that fill a batch; a longer one is a group of its own."""
    group: list[ReplaySample] = []
    room = batch_tokens
    for sample in samples:
        length = len(sample.prompt_ids) + len(sample.output_ids) - 1
        if group and length > room:
            yield group
            group, room = [], batch_tokens
        group.append(sample)
        room -= length
    if group:
        yield group
