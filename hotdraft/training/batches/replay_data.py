"""The replay buffer as training batches.

Batch i is drawn by a generator seeded with (seed, i): a run resumed at step s sees what it would have
seen without the break.
"""

import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Self

import lightning
import numpy as np
import torch
from datasets import Dataset
from torch.utils.data import DataLoader, IterableDataset

from hotdraft.pipeline.config.learning import DistillConfig, GateConfig, PredistillConfig
from hotdraft.pipeline.replay.index import held_out, prompt_hash
from hotdraft.pipeline.replay.rows import ReplayRows
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.training.batches.packing import DataError, PackedBatch, grouped, pack
from hotdraft.training.batches.pools import Pool, everything, pools_of
from hotdraft.training.batches.sound_rows import SoundRows

logger = logging.getLogger(__name__)

Rehearse = Callable[[list[ReplaySample]], list[ReplaySample]]
"""Gives the same requests with other distributions to learn."""


class PackedBatches(IterableDataset[PackedBatch]):
    """An endless stream of batches of about `batch_tokens` tokens, from optimiser step `start` on.

    Each batch comes from one of `pools`, whose rows are places in `at`, the rows of `sound` to draw from. One of
    older requests teaches what `rehearse` says of them, if given.
    A request is cut to `max_length` tokens; where that is more than a batch, it is one of its own. A step takes
    `accumulate` batches of each of `processes`, and step s the batches of the same indices however they are
    shared out.
    """

    def __init__(
        self,
        sound: SoundRows,
        at: np.ndarray,
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
        self._sound = sound
        self._at = at
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
            found = self._sound.samples([self._at[row]])
            if not found:
                continue
            [sample] = found
            length = min(self._max_length, len(sample.prompt_ids) + len(sample.output_ids) - 1)
            if chosen and length > room:
                break
            chosen.append(sample)
            room -= length
        if not chosen:
            raise DataError("none of the requests to learn from is left in the replay buffer")
        if pool.older and self._rehearse is not None:
            chosen = self._rehearse(chosen)
        return pack(
            chosen,
            max_length=self._max_length,
            rejected_weight=self._rejected_weight,
            undrafted_weight=self._undrafted_weight,
        )


class ReplayDataModule(lightning.LightningDataModule):
    """Rows of `ReplayBuffer.rows` or `load`, oldest first, split for good into a training and a held-out part.

    Requests whose prompt alone fills `max_length` (`batch_tokens` if not given) are left out of both, and so are
    those that contradict themselves, see `record_check`: of the newest `checked_requests` (all if None)
    that is known at once, of others when they are drawn. `served` says that the target was asked and
    answered every one: then of the answers to a prompt only the newest counts. Otherwise there may be texts among
    them, whose prompt is one token. An optimiser step takes `accumulate` batches. Validation looks at
    `validation_requests` held-out requests, drawn uniformly. Raises `DataError` if nothing is left to train on, or
    nothing to validate on where that is asked for.
    """

    def __init__(
        self,
        rows: ReplayRows | Dataset,
        *,
        held_out_fraction: float,
        batch_tokens: int,
        pools: Callable[[ReplayRows], Sequence[Pool]],
        seed: int,
        rejected_weight: float = 1.0,
        undrafted_weight: float = 1.0,
        max_length: int | None = None,
        accumulate: int = 1,
        validation_requests: int = 0,
        vocab_size: int | None = None,
        served: bool = True,
        checked_requests: int | None = None,
    ) -> None:
        super().__init__()
        self.accumulate = accumulate
        self._batch_tokens = batch_tokens
        self._max_length = max_length = max_length or batch_tokens
        self._vocab_size = vocab_size
        if isinstance(rows, Dataset):
            rows = ReplayRows.of(rows.with_format("arrow")[:])
        self._sound = SoundRows(rows, vocab_size=vocab_size, answered=served)
        prompts = rows.column("prompt_hash")
        newest = range(max(0, len(rows) - (checked_requests or len(rows))), len(rows))
        for row, sample in self._sound.items(newest):
            if not served and len(sample.prompt_ids) == 1:  # a text; all may begin alike, by a chat template say
                prompts[row] = prompt_hash(np.concatenate([sample.prompt_ids, sample.output_ids]))
        if self.left_out:
            first = next(iter(self._sound.faults.values()))
            logger.warning(
                "%d of %d recorded requests are left out, the first: %s", self.left_out, len(rows), first
            )
        lengths = rows.column("prompt_tokens")
        fits = (lengths > 0) & (lengths <= max_length)
        fits[list(self._sound.faults)] = False
        usable = np.flatnonzero(fits)
        domains, names = rows.domains
        self.domains = np.array(names, object)[domains[usable]].tolist()
        """Of all requests that could be used, oldest first."""
        if served:
            _, last = np.unique(prompts[usable][::-1], return_index=True)
            usable = np.sort(usable[len(usable) - 1 - last])
        for_gate = held_out(prompts[usable], held_out_fraction)
        train, self._held_out_at = usable[~for_gate], usable[for_gate]
        if not len(train):
            raise DataError(f"none of {len(rows)} recorded requests can be trained on")
        self.train_rows = rows.select(train)
        self._pools = pools(self.train_rows)
        self._seed = seed
        self.batches = partial(
            PackedBatches,
            self._sound,
            train,
            self._pools,
            batch_tokens=batch_tokens,
            max_length=max_length,
            rejected_weight=rejected_weight,
            undrafted_weight=undrafted_weight,
            seed=seed,
            accumulate=accumulate,
        )
        self.held_out_rows = rows.select(self._held_out_at)
        if validation_requests and not len(self.held_out_rows):
            raise DataError(
                f"none of {len(rows)} recorded requests is held out to validate on, at a fraction of "
                f"{held_out_fraction:g}: record more"
            )
        drawn = np.random.default_rng(seed).permutation(len(self.held_out_rows))[:validation_requests]
        self.validation_samples = self._held_out(drawn)

    @classmethod
    def online(
        cls,
        rows: ReplayRows | Dataset,
        settings: DistillConfig,
        held_out_fraction: float,
        vocab_size: int | None = None,
    ) -> Self:
        """What a job learns from, see `training.batches.pools`. `vocab_size` is the draft's."""
        return cls(
            rows,
            held_out_fraction=held_out_fraction,
            batch_tokens=settings.batch_tokens,
            max_length=settings.max_length,
            pools=partial(pools_of, settings=settings),
            seed=settings.seed,
            rejected_weight=settings.rejected_weight,
            undrafted_weight=settings.undrafted_weight,
            vocab_size=vocab_size,
            checked_requests=2 * settings.window_requests,
        )

    @classmethod
    def offline(cls, rows: Dataset, settings: PredistillConfig, held_out_fraction: float) -> Self:
        """All rows as they come, drawn uniformly and without epochs."""
        return cls(
            rows,
            held_out_fraction=held_out_fraction,
            batch_tokens=settings.batch_tokens,
            pools=lambda train: everything(len(train)),
            seed=settings.seed,
            accumulate=settings.accumulate,
            validation_requests=settings.validation_requests,
            served=False,
        )

    @property
    def left_out(self) -> int:
        """How many requests contradict themselves, of those that were read so far."""
        return len(self._sound.faults)

    def usable(self, rows: ReplayRows) -> list[ReplaySample]:
        """Those of `rows`, which were served, that a job would take."""
        sound = SoundRows(rows, vocab_size=self._vocab_size).samples(range(len(rows)))
        return [sample for sample in sound if 0 < len(sample.prompt_ids) <= self._max_length]

    def drawn(self, most: int) -> Dataset:
        """What batches are drawn from, at most so many of each pool."""
        generator = np.random.default_rng(self._seed)
        rows = [row for pool in self._pools for row in islice(pool.draw(generator), most)]
        # without a fingerprint, `datasets` pickles all of the table to have one
        return Dataset(self.train_rows.table(sorted(set(rows))), fingerprint="drawn")

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

    def held_out_samples(self, max_requests: int) -> list[ReplaySample]:
        """The newest `max_requests` held-out samples."""
        return self._held_out(range(len(self.held_out_rows))[-max_requests:])

    def held_out_by_domain(self, today: Collection[str], gate: GateConfig) -> list[ReplaySample]:
        """The newest held-out samples of `today`'s domains, and older ones of every domain alike, oldest first.

        The older ones guard what the draft already knew. Their prompts decide which are drawn: a job is judged by
        those that the one before was, as far as they are still there.
        """
        rows = self.held_out_rows
        domain, names = rows.domains
        is_today = np.isin(names, list(today))[domain]
        newest = np.flatnonzero(is_today)[-gate.max_requests :]
        others = np.setdiff1d(np.arange(len(rows)), newest)
        others = others[np.argsort(rows.column("prompt_hash")[others], kind="stable")]
        turn = np.bincount(domain[newest], minlength=len(names))[domain[others]] + _turns(domain[others])
        allowed = ~is_today[others] | (turn < gate.max_requests)
        # Stable: of each domain those whose turn comes first.
        older = others[allowed][np.argsort(turn[allowed], kind="stable")][: gate.older_requests]
        return self._held_out(np.sort(np.concatenate([newest, older])))

    def _held_out(self, indices: Iterable[int]) -> list[ReplaySample]:
        return self._sound.samples(self._held_out_at[np.fromiter(indices, np.int64)])

    @property
    def _place(self) -> tuple[int, int]:
        """This process's rank, and how many there are."""
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)


def _turns(groups: np.ndarray) -> np.ndarray:
    """How many of its group come before each of `groups` [R]."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    turns = np.empty(len(groups), np.int64)
    turns[order] = np.arange(len(groups)) - np.searchsorted(ordered, ordered)
    return turns
