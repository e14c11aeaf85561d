"""An endless stream of training batches.

Batch i is drawn by a generator seeded with (seed, i): a run resumed at step s sees what it would have
seen without the break.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import IterableDataset

from hotdraft.pipeline.replay.draft_window import in_windows, lengths_read
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.training.batches.packing import DataError, PackedBatch, pack
from hotdraft.training.batches.pools import Pool
from hotdraft.training.batches.sound_rows import SoundRows

Rehearse = Callable[[list[ReplaySample]], list[ReplaySample]]
"""Gives the same requests with other distributions to learn."""


@dataclass(frozen=True)
class Batching:
    """How requests become batches."""

    batch_tokens: int
    """Of a batch, about."""
    seed: int
    max_length: int | None = None
    """Tokens that a request is cut to, `batch_tokens` if None; where they are more, it is a batch of its own."""
    window: int | None = None
    """What the draft reads of a prompt, see `pipeline.replay.draft_window`."""
    rejected_weight: float = 1.0
    undrafted_weight: float = 1.0
    accumulate: int = 1
    """Batches of an optimiser step."""
    together: int = 1
    """Steps whose batches are drawn together, each of which is told the prompts of all."""

    @property
    def longest(self) -> int:
        return self.max_length or self.batch_tokens

    def fits(self, lengths: np.ndarray) -> np.ndarray:
        """bool [R]: whether what is read of prompts of so many tokens leaves something to learn."""
        return (lengths > 0) & (lengths_read(lengths, self.window) <= self.longest)


class PackedBatches(IterableDataset[PackedBatch]):
    """An endless stream of batches, from optimiser step `start` on.

    Each batch comes from one of `pools`, whose rows are places in `at`, the rows of `sound` to draw from. One of
    older requests teaches what `rehearse` says of them, if given. A step takes `accumulate` batches of each of
    `processes`, and step s the batches of the same indices however they are shared out.
    """

    def __init__(
        self,
        sound: SoundRows,
        at: np.ndarray,
        pools: Sequence[Pool],
        batching: Batching,
        *,
        start: int = 0,
        rank: int = 0,
        processes: int = 1,
        rehearse: Rehearse | None = None,
    ) -> None:
        self._sound = sound
        self._at = at
        self._pools = pools
        self._shares = np.array([pool.share for pool in pools]) / sum(pool.share for pool in pools)
        self._batching = batching
        self._start = start
        self._rank = rank
        self._processes = processes
        self._rehearse = rehearse

    def __iter__(self) -> Iterator[PackedBatch]:
        together = self._batching.together
        for start in itertools.count(self._start, together):
            drawn = [batch for step in range(start, start + together) for batch in self._of_step(step)]
            ahead = tuple(prompt for batch in drawn for prompt in batch.prompts) if together > 1 else ()
            yield from (batch._replace(prompts_ahead=ahead) for batch in drawn)

    def _of_step(self, step: int) -> list[PackedBatch]:
        """A step's batches are drawn together, so that each can tell the weight of them all."""
        stride = self._batching.accumulate * self._processes
        indices = range(step * stride + self._rank, (step + 1) * stride, self._processes)
        batches = [self.batch(index) for index in indices]
        weight = torch.stack([batch.step_weight for batch in batches]).sum()
        return [batch._replace(step_weight=weight) for batch in batches]

    def batch(self, index: int) -> PackedBatch:
        batching, max_length = self._batching, self._batching.longest
        generator = np.random.default_rng([batching.seed, index])
        pool = self._pools[generator.choice(len(self._pools), p=self._shares)]
        chosen: list[ReplaySample] = []
        room = batching.batch_tokens
        for row in pool.draw(generator):
            found = self._sound.samples([self._at[row]])
            if not found:
                continue
            parts = [part for part in in_windows(found[0], batching.window) if len(part.prompt_ids) <= max_length]
            # what older requests teach is kept by their ids
            sample = parts[0 if pool.older or len(parts) == 1 else generator.integers(len(parts))]
            length = min(max_length, len(sample.prompt_ids) + len(sample.output_ids) - 1)
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
            max_length=max_length,
            rejected_weight=batching.rejected_weight,
            # the draft was asked for nothing of what is rehearsed
            undrafted_weight=1.0 if pool.older else batching.undrafted_weight,
        )
