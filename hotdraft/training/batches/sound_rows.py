"""Recorded requests as samples, without those that contradict themselves or that another target answered.

Each is read when it is first needed.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from hotdraft.pipeline.replay.buffer import sample_from_row
from hotdraft.pipeline.replay.rows import ReplayRows
from hotdraft.pipeline.replay.sample import ReplaySample, may_be_same
from hotdraft.training.batches.byte_cache import ByteCache
from hotdraft.training.batches.record_check import contradiction

KEPT_BYTES = 256 * 2**20
"""A request of 100 tokens with 64 of the target's likeliest at each takes 40 kB, one of 8,000 takes 3 MB."""
AT_ONCE = 256


class SoundRows:
    """The samples of `rows`; `answered` and `vocab_size` are those of `record_check.contradiction`.

    `target_id` is today's target; where it or a request's is not known, that request counts.
    """

    def __init__(
        self, rows: ReplayRows, *, vocab_size: int | None = None, answered: bool = True, target_id: str = ""
    ) -> None:
        self.faults: dict[int, str] = {}
        """Why a row is left out, of those that were read so far."""
        self._rows = rows
        self._vocab_size = vocab_size
        self._answered = answered
        self._target_id = target_id
        self._is_sound = np.zeros(len(rows), bool)
        self._kept = ByteCache[int, ReplaySample](KEPT_BYTES)

    def samples(self, rows: Sequence[int] | np.ndarray) -> list[ReplaySample]:
        """Those of `rows`, in order, that are there still and sound."""
        return [sample for _, sample in self.items(rows)]

    def items(self, rows: Sequence[int] | np.ndarray | range) -> Iterator[tuple[int, ReplaySample]]:
        """Likewise, with their row."""
        asked = np.asarray(rows, np.int64)
        for start in range(0, len(asked), AT_ONCE):
            chunk = asked[start : start + AT_ONCE].tolist()
            found = {row: sample for row in dict.fromkeys(chunk) if (sample := self._kept.get(row)) is not None}
            missing = [row for row in chunk if row not in found and row not in self.faults]
            for row, values in self._rows.read(missing):
                if (sample := self._checked(row, values)) is not None:
                    found[row] = sample
                    self._kept.keep(row, sample)
            yield from ((row, found[row]) for row in chunk if row in found)

    def _checked(self, row: int, values: dict) -> ReplaySample | None:
        try:
            sample = sample_from_row(values)
        except ValueError as error:
            fault: str | None = f"its arrays are no request: {error}"
        else:
            if self._is_sound[row]:
                return sample
            fault = contradiction(sample, vocab_size=self._vocab_size, answered=self._answered)
            if not may_be_same(sample.target_id, self._target_id):
                fault = "another target answered it"
        if fault is not None:
            self.faults[row] = fault
            return None
        self._is_sound[row] = True
        return sample
