"""The replay buffer as training batches: several requests packed in one row, and no padding.

A request's tokens see only their own request, through a block-causal mask, and count their positions
from 0, so that packing changes nothing but the speed. Batch i is drawn by a generator seeded with
(seed, i): a run resumed at step i sees what it would have seen without the break.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import lightning
import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from pipeline.records import ReplaySample
from pipeline.replay import is_held_out, sample_from_row


class DataError(ValueError):
    """Replay samples that cannot be trained on."""


class PackedBatch(NamedTuple):
    """R requests in one row of T tokens, with N supervised positions and K target tokens at each."""

    input_ids: Tensor
    """int64 [1, T]."""
    position_ids: Tensor
    """int64 [1, T]: from 0 in each request."""
    attention_mask: Tensor
    """bool [1, 1, T, T]: True where the row's token may see the column's."""
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
    weight: Tensor
    """float32 [N]: loss weight."""


def pack(samples: Sequence[ReplaySample], *, max_length: int, rejected_weight: float = 1.0) -> PackedBatch:
    """Pack `samples`, each cut to its first `max_length` tokens.

    Positions whose drafted token was rejected weigh `rejected_weight`, all others 1. Where samples keep
    different numbers of target tokens, all are cut to the fewest and the rest moves to the tail.
    Raises `DataError` for a sample whose prompt leaves no supervised position.
    """
    top_k = min(sample.target_top_ids.shape[1] for sample in samples)
    columns: dict[str, list[np.ndarray]] = {name: [] for name in PackedBatch._fields}
    start = 0
    for index, sample in enumerate(samples):
        # The last output token is a label only: nothing is predicted after it.
        tokens = np.concatenate([sample.prompt_ids, sample.output_ids])[:-1][:max_length]
        first = len(sample.prompt_ids) - 1
        length = len(tokens)
        count = length - first
        if first < 0 or count <= 0:
            raise DataError(
                f"request {sample.request_id}: {len(sample.prompt_ids)} prompt tokens leave nothing to "
                f"learn within {max_length} tokens"
            )
        logprobs, tail = _cut_top(sample, count, top_k)
        columns["input_ids"].append(tokens)
        columns["position_ids"].append(np.arange(length))
        columns["attention_mask"].append(np.full(length, index))
        columns["supervised"].append(start + first + np.arange(count))
        columns["request"].append(np.full(count, index))
        columns["top_ids"].append(sample.target_top_ids[:count, :top_k])
        columns["top_logprobs"].append(logprobs)
        columns["tail_logprob"].append(tail)
        columns["temperature"].append(np.full(count, sample.temperature))
        columns["weight"].append(np.where(sample.rejected[:count], rejected_weight, 1.0))
        start += length

    def joined(name: str, dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(np.concatenate(columns[name])).to(dtype)

    owner = joined("attention_mask", torch.int64)
    return PackedBatch(
        input_ids=joined("input_ids", torch.int64)[None],
        position_ids=joined("position_ids", torch.int64)[None],
        attention_mask=(owner[:, None] == owner[None, :]).tril()[None, None],
        supervised=joined("supervised", torch.int64),
        request=joined("request", torch.int64),
        top_ids=joined("top_ids", torch.int64),
        top_logprobs=joined("top_logprobs", torch.float32),
        tail_logprob=joined("tail_logprob", torch.float32),
        temperature=joined("temperature", torch.float32),
        weight=joined("weight", torch.float32),
    )


def _cut_top(sample: ReplaySample, count: int, top_k: int) -> tuple[np.ndarray, np.ndarray]:
    logprobs = sample.target_top_logprobs[:count].astype(np.float32)
    tail = sample.target_tail_logprob[:count]
    if logprobs.shape[1] > top_k:
        tail = np.logaddexp(tail, np.logaddexp.reduce(logprobs[:, top_k:], axis=1))
    return logprobs[:, :top_k], tail


class PackedBatches(IterableDataset[PackedBatch]):
    """An endless stream of batches of about `batch_tokens` tokens, from batch `start` on.

    Each batch comes from the newest `window_requests` rows or, with probability `older_fraction` and
    if there are any, from the rows before them.
    """

    def __init__(
        self,
        rows: Dataset,
        *,
        batch_tokens: int,
        window_requests: int,
        older_fraction: float,
        rejected_weight: float,
        seed: int,
        start: int = 0,
    ) -> None:
        self._rows = rows.with_format("numpy")
        self._older = max(len(rows) - window_requests, 0)
        self._batch_tokens = batch_tokens
        self._older_fraction = older_fraction
        self._rejected_weight = rejected_weight
        self._seed = seed
        self._start = start

    def __iter__(self) -> Iterator[PackedBatch]:
        index = self._start
        while True:
            yield self.batch(index)
            index += 1

    def batch(self, index: int) -> PackedBatch:
        generator = np.random.default_rng([self._seed, index])
        from_older = generator.random() < self._older_fraction and self._older > 0
        pool = np.arange(self._older) if from_older else np.arange(self._older, len(self._rows))
        chosen: list[ReplaySample] = []
        room = self._batch_tokens
        for row in generator.permutation(pool):
            sample = sample_from_row(self._rows[int(row)])
            length = len(sample.prompt_ids) + len(sample.output_ids) - 1
            if chosen and length > room:
                break
            chosen.append(sample)
            room -= length
        return pack(chosen, max_length=self._batch_tokens, rejected_weight=self._rejected_weight)


class ReplayDataModule(lightning.LightningDataModule):
    """Rows of `ReplayBuffer.load`, oldest first, split for good into a training and a held-out part.

    Requests whose prompt alone fills `batch_tokens` are left out of both. For offline training take
    `window_requests` no smaller than the data and `older_fraction` 0: uniform draws without epochs.
    Raises `DataError` if nothing is left to train on.
    """

    def __init__(
        self,
        rows: Dataset,
        *,
        held_out_fraction: float,
        batch_tokens: int,
        window_requests: int,
        older_fraction: float,
        rejected_weight: float,
        seed: int,
    ) -> None:
        super().__init__()
        usable = [
            (index, is_held_out(row["request_id"], held_out_fraction))
            for index, row in enumerate(rows.select_columns(["request_id", "prompt_ids"]).with_format("numpy"))
            if 0 < len(row["prompt_ids"]) <= batch_tokens
        ]
        train = [index for index, held_out in usable if not held_out]
        if not train:
            raise DataError(f"none of {len(rows)} recorded requests can be trained on")
        self.train_rows = rows.select(train)
        self.batches = partial(
            PackedBatches,
            self.train_rows,
            batch_tokens=batch_tokens,
            window_requests=window_requests,
            older_fraction=older_fraction,
            rejected_weight=rejected_weight,
            seed=seed,
        )
        self.held_out_rows = rows.select([index for index, held_out in usable if held_out])
        window_start = train[-window_requests:][0]
        self.held_out_older = sum(held_out and index < window_start for index, held_out in usable)
        """How many of `held_out_rows`, from the first, are older than the training window."""

    def train_dataloader(self) -> DataLoader[PackedBatch]:
        # One batch a step, and the trainer has restored its step by now: the stream goes on from there.
        start = self.trainer.global_step if self.trainer else 0
        return DataLoader(self.batches(start=start), batch_size=None)

    def held_out_samples(self, max_requests: int, seed: int) -> list[ReplaySample]:
        """The newest `max_requests` held-out samples of the window and up to half as many older ones.

        The older ones are drawn uniformly: they guard what the draft already knew.
        """
        rows = self.held_out_rows.with_format("numpy")
        recent = range(self.held_out_older, len(rows))[-max_requests:]
        generator = np.random.default_rng(seed)
        older_count = min(max_requests // 2, self.held_out_older)
        older = generator.permutation(self.held_out_older)[:older_count]
        return [sample_from_row(rows[int(index)]) for index in [*sorted(older), *recent]]
