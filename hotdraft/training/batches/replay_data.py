"""The replay buffer as a training and a held-out part, in batches."""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Self

import lightning
import numpy as np
import torch
from datasets import Dataset
from torch.utils.data import DataLoader

from hotdraft.pipeline.config.learning import DistillConfig, GateConfig, PredistillConfig
from hotdraft.pipeline.replay.index import held_out, prompt_hash
from hotdraft.pipeline.replay.rows import ReplayRows
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.training.batches.packing import DataError, PackedBatch, grouped, pack
from hotdraft.training.batches.pools import Pool, everything, pools_of
from hotdraft.training.batches.sound_rows import SoundRows
from hotdraft.training.batches.stream import Batching, PackedBatches, Rehearse

logger = logging.getLogger(__name__)

STEPS_TOGETHER = 8
"""Of a job that keeps prompts: to read them together takes half the time."""


@dataclass(frozen=True)
class Selection:
    """Which recorded requests count."""

    held_out_fraction: float
    """Of the prompts."""
    served: bool = True
    """Whether the target was asked and answered every one: then of the answers to a prompt only the newest counts.
    Otherwise there may be texts among them, whose prompt is one token."""
    vocab_size: int | None = None
    """The draft's."""
    checked_requests: int | None = None
    """Newest ones that are read at once, all if None; others are when they are drawn."""
    target_id: str = ""
    """Of today's target, whose answers alone count if it is known."""
    validation_requests: int = 0
    """Held-out ones that validation looks at, drawn uniformly."""


class ReplayDataModule(lightning.LightningDataModule):
    """Rows of `ReplayBuffer.rows` or `load`, oldest first, split for good into a training and a held-out part.

    Requests whose prompt alone is as long as any may be are left out of both, and so are those that contradict
    themselves, see `record_check`, or that another target answered. Raises `DataError` if nothing is left to train
    on, or nothing to validate on where that is asked for.
    """

    def __init__(
        self,
        rows: ReplayRows | Dataset,
        pools: Callable[[ReplayRows], Sequence[Pool]],
        batching: Batching,
        selection: Selection,
    ) -> None:
        super().__init__()
        self._batching = batching
        self._sound_rows = partial(
            SoundRows,
            vocab_size=selection.vocab_size,
            answered=selection.served,
            target_id=selection.target_id,
        )
        if isinstance(rows, Dataset):
            rows = ReplayRows.of(rows.with_format("arrow")[:])
        self._sound = self._sound_rows(rows)
        self._target_id = selection.target_id
        ours = rows.may_be_of(self._target_id)
        self._others = int((~ours).sum())
        prompts = rows.column("prompt_hash")
        newest = np.flatnonzero(ours)
        if selection.checked_requests is not None:
            newest = newest[-selection.checked_requests :]
        for row, sample in self._sound.items(newest):
            if not selection.served and len(sample.prompt_ids) == 1:  # a text; all may begin alike, by a template
                prompts[row] = prompt_hash(np.concatenate([sample.prompt_ids, sample.output_ids]))
        if self.left_out:
            first = next(iter(self._sound.faults.values()), "another target answered it")
            logger.warning(
                "%d of %d recorded requests are left out, the first: %s", self.left_out, len(rows), first
            )
        fits = batching.fits(rows.column("prompt_tokens"))
        self._too_long = int((~fits & ours).sum())
        fits &= ours
        fits[list(self._sound.faults)] = False
        usable = np.flatnonzero(fits)
        domains, names = rows.domains
        self.domains = np.array(names, object)[domains[usable]].tolist()
        """Of all requests that could be used, oldest first."""
        if selection.served:
            _, last = np.unique(prompts[usable][::-1], return_index=True)
            usable = np.sort(usable[len(usable) - 1 - last])
        for_gate = held_out(prompts[usable], selection.held_out_fraction)
        train, self._held_out_at = usable[~for_gate], usable[for_gate]
        if not len(train):
            raise DataError(f"none of {len(rows)} recorded requests can be trained on, {self.why_left_out}")
        self.train_rows = rows.select(train)
        self._pools = pools(self.train_rows)
        self.batches = partial(PackedBatches, self._sound, train, pools=self._pools, batching=batching)
        self.held_out_rows = rows.select(self._held_out_at)
        if selection.validation_requests and not len(self.held_out_rows):
            raise DataError(
                f"none of {len(rows)} recorded requests is held out to validate on, at a fraction of "
                f"{selection.held_out_fraction:g}: record more"
            )
        self._drawn = np.random.default_rng(batching.seed).permutation(len(self.held_out_rows))
        self.validation_samples = self._held_out(self._drawn[: selection.validation_requests])

    @classmethod
    def for_job(
        cls,
        rows: ReplayRows | Dataset,
        settings: DistillConfig,
        held_out_fraction: float,
        vocab_size: int | None = None,
        window: int | None = None,
        target_id: str = "",
    ) -> Self:
        """What a job learns from, see `training.batches.pools`. `vocab_size` and `window` are the draft's."""
        batching = Batching(
            settings.batch_tokens,
            settings.seed,
            settings.max_length,
            window,
            rejected_weight=settings.rejected_weight,
            undrafted_weight=settings.undrafted_weight,
            together=STEPS_TOGETHER if settings.prompt_steps else 1,
        )
        checked = 2 * settings.window_requests
        selection = Selection(
            held_out_fraction, vocab_size=vocab_size, checked_requests=checked, target_id=target_id
        )
        return cls(rows, partial(pools_of, settings=settings), batching, selection)

    @classmethod
    def for_predistill(cls, rows: Dataset, settings: PredistillConfig, held_out_fraction: float) -> Self:
        """All rows as they come, drawn uniformly and without epochs."""
        batching = Batching(settings.batch_tokens, settings.seed, accumulate=settings.accumulate)
        selection = Selection(held_out_fraction, served=False, validation_requests=settings.validation_requests)
        return cls(rows, lambda train: everything(len(train)), batching, selection)

    @property
    def accumulate(self) -> int:
        """Batches of an optimiser step."""
        return self._batching.accumulate

    @property
    def left_out(self) -> int:
        """How many requests contradict themselves or are another target's, of those that were read so far."""
        return self._others + len(self._sound.faults)

    @property
    def why_left_out(self) -> str:
        """How many of the requests cannot be used, and why."""
        of_no_use = f"{self.left_out} of them contradict themselves, are no requests or another target's"
        return f"{of_no_use}, {self._too_long} have prompts of more than {self._batching.longest} tokens"

    def ours(self, rows: ReplayRows) -> ReplayRows:
        """Those of `rows` that today's target may have answered."""
        return rows.select(np.flatnonzero(rows.may_be_of(self._target_id)))

    def usable(self, rows: ReplayRows) -> list[ReplaySample]:
        """Those of `rows`, which were served, that a job would take."""
        sound = self._sound_rows(rows).samples(range(len(rows)))
        fits = self._batching.fits(np.array([len(sample.prompt_ids) for sample in sound]))
        return [sample for sample, fit in zip(sound, fits, strict=True) if fit]

    def drawn(self, most: int) -> Dataset:
        """What batches are drawn from, at most so many of each pool."""
        generator = np.random.default_rng(self._batching.seed)
        rows = [row for pool in self._pools for row in islice(pool.draw(generator), most)]
        # without a fingerprint, `datasets` pickles all of the table to have one
        return Dataset(self.train_rows.table(sorted(set(rows))), fingerprint="drawn")

    def older(self, tokens: int) -> PackedBatch | None:
        """About so many tokens of older requests, of any domain as likely; None if there are none to rehearse."""
        pools = [pool for pool in self._pools if pool.older]
        if not pools:
            return None
        return self.batches(pools=pools, batching=replace(self._batching, batch_tokens=tokens)).batch(0)

    def rehearse_more(self, share: float) -> None:
        """Have at least this share of the batches be of older requests, if there are any."""
        whole = sum(pool.share for pool in self._pools)
        older = sum(pool.share for pool in self._pools if pool.older) / whole
        if 0 < older < share:
            times = {True: share / older, False: (1 - share) / (1 - older)}
            pools = [replace(pool, share=pool.share * times[pool.older]) for pool in self._pools]
            self.batches = partial(self.batches, pools=pools)

    def rehearse(self, older: Rehearse) -> None:
        """Have batches of older requests teach what `older` makes of them, and not what the target said."""
        self.batches = partial(self.batches, rehearse=older)

    def train_dataloader(self) -> DataLoader[PackedBatch]:
        # The trainer has restored its step by now: the stream goes on from there.
        start = self.trainer.global_step if self.trainer else 0
        rank, processes = self._place
        return DataLoader(self.batches(start=start, rank=rank, processes=processes), batch_size=None)

    def val_dataloader(self) -> DataLoader[PackedBatch]:
        groups = grouped(self.validation_samples, self._batching.batch_tokens)
        batches = [pack(group, max_length=self._batching.longest) for group in groups]
        rank, processes = self._place
        # Sharded weights are gathered by all processes together: none may have a batch less.
        missing = -len(batches) % processes
        batches += missing * [batches[0]._replace(weight=torch.zeros_like(batches[0].weight))]
        return DataLoader(batches[rank::processes], batch_size=None)  # type: ignore[arg-type]  # a list will do

    def held_out_samples(self, max_requests: int) -> list[ReplaySample]:
        """At most so many held-out samples, drawn uniformly, those that validation looks at last."""
        return self._held_out(self._drawn[::-1][:max_requests])

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
