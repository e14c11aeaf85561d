"""The replay buffer as training batches.

Batch i is drawn by a generator seeded with (seed, i): a run resumed at step s sees what it would have
seen without the break.
"""

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Self

import lightning
import numpy as np
import torch
from datasets import Dataset
from torch.utils.data import DataLoader, IterableDataset

from pipeline.config import DistillConfig, PredistillConfig
from pipeline.records import ReplaySample
from pipeline.replay import is_held_out, sample_from_row
from training.packing import DataError, PackedBatch, grouped, pack
from training.pools import Pool, everything, pools_of
from training.record_check import contradictions

logger = logging.getLogger(__name__)

Rehearse = Callable[[list[ReplaySample]], list[ReplaySample]]
"""Gives the same requests with other distributions to learn."""


class PackedBatches(IterableDataset[PackedBatch]):
    """An endless stream of batches of about `batch_tokens` tokens, from optimiser step `start` on.

    Each batch comes from one of `pools`, and one of older requests teaches what `rehearse` says of them, if given.
    A request is cut to `max_length` tokens; where that is more than a batch, it is one of its own. A step takes
    `accumulate` batches of each of `processes`, and step s the batches of the same indices however they are
    shared out.
    """

    def __init__(
        self,
        rows: Dataset,
        pools: Sequence[Pool],
        *,
        batch_tokens: int,
        max_length: int,
        rejected_weight: float,
        undrafted_weight: float,
        seed: int,
        start: int = 0,
        accumulate: int = 1,
        rank: int = 0,
        processes: int = 1,
        rehearse: Rehearse | None = None,
    ) -> None:
        self._rows = rows.with_format("numpy")
        self._pools = pools
        self._shares = np.array([pool.share for pool in pools]) / sum(pool.share for pool in pools)
        self._batch_tokens = batch_tokens
        self._max_length = max_length
        self._rejected_weight = rejected_weight
        self._undrafted_weight = undrafted_weight
        self._seed = seed
        self._start = start
        self._accumulate = accumulate
        self._rank = rank
        self._processes = processes
        self._rehearse = rehearse

    def __iter__(self) -> Iterator[PackedBatch]:
        """A step's batches are drawn together, so that each can tell the weight of them all."""
        for step in itertools.count(self._start):
            first = step * self._accumulate * self._processes + self._rank
            indices = range(first, first + self._accumulate * self._processes, self._processes)
            batches = [self.batch(index) for index in indices]
            weight = torch.stack([batch.step_weight for batch in batches]).sum()
            yield from (batch._replace(step_weight=weight) for batch in batches)

    def batch(self, index: int) -> PackedBatch:
        generator = np.random.default_rng([self._seed, index])
        pool = self._pools[generator.choice(len(self._pools), p=self._shares)]
        chosen: list[ReplaySample] = []
        room = self._batch_tokens
        for row in pool.draw(generator):
            sample = sample_from_row(self._rows[int(row)])
            length = min(self._max_length, len(sample.prompt_ids) + len(sample.output_ids) - 1)
            if chosen and length > room:
                break
            chosen.append(sample)
            room -= length
        if pool.older and self._rehearse is not None:
            chosen = self._rehearse(chosen)
        return pack(
            chosen,
            max_length=self._max_length,
            rejected_weight=self._rejected_weight,
            undrafted_weight=self._undrafted_weight,
        )


class ReplayDataModule(lightning.LightningDataModule):
    """Rows of `ReplayBuffer.load`, oldest first, split for good into a training and a held-out part.

    Requests whose prompt alone fills `max_length` (`batch_tokens` if not given) are left out of both, and so are
    those that contradict themselves, see `training.record_check`. `served` says that the target was asked and
    answered every one: then of the answers to a prompt only the newest counts. Otherwise there may be texts among
    them, whose prompt is one token. An optimiser step takes `accumulate` batches. Validation looks at
    `validation_requests` held-out requests, drawn uniformly. Raises `DataError` if nothing is left to train on, or
    nothing to validate on where that is asked for.
    """

    def __init__(
        self,
        rows: Dataset,
        *,
        held_out_fraction: float,
        batch_tokens: int,
        pools: Callable[[Dataset], Sequence[Pool]],
        window_requests: int,
        seed: int,
        rejected_weight: float = 1.0,
        undrafted_weight: float = 1.0,
        max_length: int | None = None,
        accumulate: int = 1,
        validation_requests: int = 0,
        vocab_size: int | None = None,
        served: bool = True,
    ) -> None:
        super().__init__()
        self.accumulate = accumulate
        self._batch_tokens = batch_tokens
        self._max_length = max_length = max_length or batch_tokens
        faults = list(contradictions(rows, vocab_size=vocab_size, answered=served))
        self.left_out = sum(fault is not None for fault in faults)
        """How many requests contradict themselves."""
        if self.left_out:
            first = next(fault for fault in faults if fault is not None)
            logger.warning(
                "%d of %d recorded requests are left out, the first: %s", self.left_out, len(rows), first
            )
        prompts = list(_arrays(rows, "prompt_ids"))
        usable = [
            index for index, prompt in enumerate(prompts) if 0 < len(prompt) <= max_length and faults[index] is None
        ]
        self.domains = list(rows.select(usable)["domain"])
        """Of all requests that could be used, oldest first."""
        if served:
            usable = sorted({prompts[index].tobytes(): index for index in usable}.values())
        decisive = prompts if served else map(_prompt_or_text, prompts, _arrays(rows, "output_ids"))
        for_gate = [is_held_out(ids, held_out_fraction) for ids in decisive]
        train = [index for index in usable if not for_gate[index]]
        if not train:
            raise DataError(f"none of {len(rows)} recorded requests can be trained on")
        self.train_rows = rows.select(train)
        self.batches = partial(
            PackedBatches,
            self.train_rows,
            pools(self.train_rows),
            batch_tokens=batch_tokens,
            max_length=max_length,
            rejected_weight=rejected_weight,
            undrafted_weight=undrafted_weight,
            seed=seed,
            accumulate=accumulate,
        )
        held_out = [index for index in usable if for_gate[index]]
        self.held_out_rows = rows.select(held_out)
        window_start = train[-window_requests:][0]
        self.held_out_older = sum(index < window_start for index in held_out)
        """How many of `held_out_rows`, from the first, are older than the training window."""
        if validation_requests and not len(self.held_out_rows):
            raise DataError(
                f"none of {len(rows)} recorded requests is held out to validate on, at a fraction of "
                f"{held_out_fraction:g}: record more"
            )
        drawn = np.random.default_rng(seed).permutation(len(self.held_out_rows))[:validation_requests]
        self.validation_samples = self._held_out(drawn)

    @classmethod
    def online(
        cls, rows: Dataset, settings: DistillConfig, held_out_fraction: float, vocab_size: int | None = None
    ) -> Self:
        """What a job learns from, see `training.pools`. `vocab_size` is the draft's."""
        return cls(
            rows,
            held_out_fraction=held_out_fraction,
            batch_tokens=settings.batch_tokens,
            max_length=settings.max_length,
            pools=partial(pools_of, settings=settings),
            window_requests=settings.window_requests,
            seed=settings.seed,
            rejected_weight=settings.rejected_weight,
            undrafted_weight=settings.undrafted_weight,
            vocab_size=vocab_size,
        )

    @classmethod
    def offline(cls, rows: Dataset, settings: PredistillConfig, held_out_fraction: float) -> Self:
        """All rows as they come, drawn uniformly and without epochs."""
        return cls(
            rows,
            held_out_fraction=held_out_fraction,
            batch_tokens=settings.batch_tokens,
            pools=lambda train: everything(len(train)),
            window_requests=len(rows),
            seed=settings.seed,
            accumulate=settings.accumulate,
            validation_requests=settings.validation_requests,
            served=False,
        )

    def rehearse(self, older: Rehearse) -> None:
        """Have batches of older requests teach what `older` makes of them, and not what the target said."""
        self.batches = partial(self.batches, rehearse=older)

    def train_dataloader(self) -> DataLoader[PackedBatch]:
        # The trainer has restored its step by now: the stream goes on from there.
        start = self.trainer.global_step if self.trainer else 0
        rank, processes = self._place
        return DataLoader(self.batches(start=start, rank=rank, processes=processes), batch_size=None)

    def val_dataloader(self) -> DataLoader[PackedBatch]:
        groups = grouped(self.validation_samples, self._batch_tokens)
        batches = [pack(group, max_length=self._max_length) for group in groups]
        rank, processes = self._place
        # Sharded weights are gathered by all processes together: none may have a batch less.
        missing = -len(batches) % processes
        batches += missing * [batches[0]._replace(weight=torch.zeros_like(batches[0].weight))]
        return DataLoader(batches[rank::processes], batch_size=None)  # type: ignore[arg-type]  # a list will do

    def held_out_samples(self, max_requests: int, seed: int) -> list[ReplaySample]:
        """The newest `max_requests` held-out samples of the window and up to half as many older ones.

        The older ones are drawn uniformly: they guard what the draft already knew.
        """
        recent = range(self.held_out_older, len(self.held_out_rows))[-max_requests:]
        generator = np.random.default_rng(seed)
        older_count = min(max_requests // 2, self.held_out_older)
        older = generator.permutation(self.held_out_older)[:older_count]
        return self._held_out([*sorted(older), *recent])

    def _held_out(self, indices: Iterable[int]) -> list[ReplaySample]:
        rows = self.held_out_rows.with_format("numpy")
        return [sample_from_row(rows[int(index)]) for index in indices]

    @property
    def _place(self) -> tuple[int, int]:
        """This process's rank, and how many there are."""
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)


def _arrays(rows: Dataset, column: str) -> Iterator[np.ndarray]:
    return (np.asarray(row[column], np.int32) for row in rows.select_columns([column]).with_format("numpy"))


def _prompt_or_text(prompt_ids: np.ndarray, output_ids: np.ndarray) -> np.ndarray:
    """What decides on a row's side: of a text all of it, as texts may all begin alike, by a chat template say."""
    return prompt_ids if len(prompt_ids) > 1 else np.concatenate([prompt_ids, output_ids])
