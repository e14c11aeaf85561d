"""A replay buffer's folder in order: bounded in bytes and age, and in few files.

Small shards are merged, neighbours only and in order, into files of at most a `SHARE` of the buffer. A merged shard
tells where its rows were first committed: what a crash, or another server of an object store, left beside it
holds the same rows and does not count. Likewise the reservoir tells of the shards that it was filled from last,
which count no more, see `pipeline.replay.counted`.
"""

import logging
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

import numpy as np
import pyarrow as pa

from hotdraft.pipeline.replay.counted import RESERVOIR, Ranges, counted, is_reservoir, newest_reservoir
from hotdraft.pipeline.replay.folder import SUFFIX, UNFINISHED, ShardFolder, nanoseconds, shard_stem, stem_of
from hotdraft.pipeline.replay.index import INDEX
from hotdraft.pipeline.replay.reservoir import kept
from hotdraft.pipeline.replay.shard import Origin, Shard, is_merged, read_rows
from hotdraft.pipeline.replay.shard_writer import written

logger = logging.getLogger(__name__)

SHARE = 32
"""The largest merged shard, and so what retention deletes at once, is this part of the buffer. So are the reservoir
and the quarantine at most."""
USUAL_BYTES = 2_000_000_000
"""Whose share is taken where this process knows no bound: whoever else writes may have one."""
FAN_IN = 32
"""Small neighbours that are worth a merge."""
MAX_FILES = 64
"""Merged at once: less than a second of work where an older version left many, as others wait for it."""
MAX_MERGED_BYTES, MAX_MERGED_ROWS = 128_000_000, 16_384
"""Of a merged shard: some seconds of work, which the requests that are being recorded wait for."""
TIERS = (1024, 32, 2)
"""Shards up to these parts of the largest are merged once there are many, not counting those of the tier before: no
row is written often."""
AGES = 16
"""Merged shards span at most this part of the age that is allowed: they go when their first rows have to."""
ABANDONED_SECONDS = 3600
"""Age at which an unfinished shard is taken to have lost its writer."""
UNREADABLE_SECONDS = 3600
"""That a shard of which rows could not be read is left out of merges, which would fail one after the other."""


class Upkeep:
    """Keeps `folder`. Raises OSError if the folder is away; then, and if it is killed, no row is lost."""

    def __init__(
        self, folder: ShardFolder, max_bytes: int | None, max_age_seconds: float | None, reservoir_requests: int
    ) -> None:
        self._folder = folder
        self._max_bytes = math.inf if max_bytes is None else max_bytes
        self._share = (USUAL_BYTES if max_bytes is None else max_bytes) // SHARE
        self._max_age_seconds = max_age_seconds
        self._reservoir_requests = reservoir_requests
        self._opened: dict[str, Shard] = {}
        """By name, without their index."""
        self._unreadable: dict[str, float] = {}
        """Of shards by name, when rows of them could not be read."""

    def run(self, needed_bytes: int = 0) -> None:
        """Delete what is too much or too old, and at least `needed_bytes`; then merge once if it is worth it."""
        with self._folder.alone() as alone:
            if not alone:
                return
            listed = self._folder.files(SUFFIX, UNFINISHED)  # once, as lists of what a store holds are dear
            sizes = {name: size for name, size in listed.items() if name.endswith(SUFFIX)}
            self._delete_unfinished(listed.keys() - sizes.keys())
            set_aside = self._delete_quarantined(needed_bytes)
            errors = self._folder.errors
            if self._delete_leftovers(sizes):
                sizes = self._folder.files()
            # what may not be deleted is neither merged nor taken into the reservoir over and over
            rewrites = self._folder.errors == errors and not needed_bytes
            self._retire(sizes, set_aside, needed_bytes, refills=rewrites)
            if rewrites:
                self._merge(sizes)

    def _delete_unfinished(self, names: Iterable[str]) -> None:
        abandoned = "." + shard_stem(time.time() - ABANDONED_SECONDS)
        for name in names:  # an older version's reservoir has a name of its own
            if name.startswith((".shard-", f".{RESERVOIR}-")) and name.replace(RESERVOIR, "shard") < abandoned:
                self._folder.remove(name)

    def _delete_quarantined(self, needed_bytes: int) -> int:
        """Gives the bytes that are left."""
        sizes = self._folder.quarantined()
        left, allowed = sum(sizes.values()), 0 if needed_bytes else self._share
        if left <= allowed:
            return left
        for name, size in sizes.items():
            if left > allowed:
                self._folder.delete_quarantined(name)
                left -= size
        return sum(self._folder.quarantined().values())

    def _retire(self, sizes: dict[str, int], set_aside: int, needed_bytes: int, *, refills: bool) -> None:
        """`set_aside`: bytes of the quarantine."""
        reserved = self._share if self._reservoir_requests else 0
        reservoir = sum(size for name, size in sizes.items() if is_reservoir(name))
        total = sum(sizes.values()) + max(0, reserved - reservoir) + set_aside
        allowed = min(self._max_bytes, total - needed_bytes)
        going = []
        for name in [name for name in sizes if not is_reservoir(name)][:-1]:  # the newest always stays
            if total <= allowed and not self._is_old(name):
                break
            going.append(name)
            total -= sizes[name]
        if going and self._reservoir_requests and refills:
            self._refill(going, sizes)  # before they are gone: they count no more from here on
        if going and needed_bytes:
            logger.warning("the disk is full: the oldest %d of %d shards make room", len(going), len(sizes))
        for name in going:
            self._folder.remove(name)

    def _is_old(self, name: str) -> bool:
        return self._max_age_seconds is not None and name < shard_stem(time.time() - self._max_age_seconds)

    def _refill(self, going: Sequence[str], sizes: dict[str, int]) -> None:
        """Offer the rows of `going` to the reservoir, which is written anew.

        It stays as it is if that fails or it cannot be read for now; `going` goes all the same, as disks are
        bounded.
        """
        reservoirs = sorted(filter(is_reservoir, sizes), reverse=True)
        errors = self._folder.errors
        held = [shard for name in reservoirs if (shard := self._folder.open(name, sizes[name]))]
        if self._folder.errors > errors:
            return
        shards = [*held, *(shard for name in going if (shard := self._folder.open(name, sizes[name])))]
        if not (count := sum(shard.rows for shard in shards)):
            return
        row_bytes = max(1, sum(shard.size for shard in shards) // count)
        index = pa.concat_tables([shard.index for shard in shards if shard.index is not None])
        old_rows = sum(shard.rows for shard in held)
        rows = kept(index, old_rows, self._reservoir_requests, self._share // row_bytes)
        if len(held) == 1 and np.array_equal(rows, np.arange(old_rows)):
            return
        if len(rows):
            stem = shard_stem(time.time()).replace("shard", RESERVOIR)
            taken = [Origin(name, 0) for shard in shards[len(held) :] for name in shard.origin_names]
            origins = [Origin(stem, len(rows)), *taken]
            try:
                self._folder.write(stem, lambda file: written(file, self._verified(shards, index, rows), origins))
            except OSError as error:
                self._folder.note_failure("its reservoir", error)
                return
            self._folder.note_success("its reservoir")
        for name in reservoirs:
            self._folder.remove(name)

    def _parts(
        self, shards: Sequence[Shard], index: pa.Table, rows: np.ndarray
    ) -> Iterator[tuple[pa.Table, pa.Table]]:
        """`rows` of all rows of `shards` in a row, with their index."""
        start = 0
        for shard in shards:
            chosen = rows[(rows >= start) & (rows < start + shard.rows)]
            with self._folder.reading(shard.name):
                for table in read_rows(shard, self._folder.reader(shard.name), chosen - start):
                    yield table, index.take(chosen[: len(table)])
                    chosen = chosen[len(table) :]
            if len(chosen):
                self._unreadable[shard.name] = time.monotonic()
            start += shard.rows

    def _covering(self, sizes: dict[str, int]) -> dict[str, Shard]:
        """What may hold rows of other files: merged shards and the reservoir."""
        found = {}
        for name in [*newest_reservoir([*sizes]), *filter(is_merged, sizes)]:
            shard = self._opened.get(name) or self._folder.open(name, sizes[name])
            if shard is not None:
                found[name] = shard.without_index()
        self._opened = found
        return found

    def _delete_leftovers(self, sizes: dict[str, int]) -> bool:
        """What a merge or the reservoir took, and a crash left, if there is any."""
        covering = self._covering(sizes)
        taken = {origin for shard in covering.values() for origin in shard.origin_names if origin != shard.name}
        covered = taken & sizes.keys()
        covered |= {name for name, ranges in counted([*covering.values()]).items() if not ranges}
        for name in covered:
            self._folder.remove(name)
        return bool(covered)

    def _merge(self, sizes: dict[str, int]) -> None:
        if not self._worth_merging(sizes):
            return
        sizes = self._folder.files()  # without what went meanwhile
        self._covering(sizes)
        run = self._worth_merging(sizes)
        shards = [shard for name in run if (shard := self._folder.open(name, sizes[name]))]
        if len(shards) < 2:
            return
        others = [shard for name, shard in self._covering(sizes).items() if name not in run]
        ranges = counted([*shards, *others])
        origins = [origin for shard in shards for origin in _within(shard, ranges[shard.name])]
        index = pa.concat_tables([shard.index or INDEX.empty_table() for shard in shards])
        starts = np.cumsum([0, *(shard.rows for shard in shards)])
        rows = [
            np.arange(start, end) + offset
            for shard, offset in zip(shards, starts, strict=False)
            for start, end in ranges[shard.name]
        ]

        def fill(file: IO[bytes]) -> int:
            return written(file, self._verified(shards, index, np.concatenate(rows)), origins)

        new = self._folder.write(stem_of(run[0]), fill, ".merged.parquet")
        for shard in shards:
            if shard.name != new:
                self._folder.remove(shard.name)

    def _verified(
        self, shards: Sequence[Shard], index: pa.Table, rows: np.ndarray
    ) -> Iterator[tuple[pa.Table, pa.Table]]:
        """`_parts`, all of them. What this is for is tried again without a shard that fails."""
        count = 0
        for part in self._parts(shards, index, rows):
            count += len(part[0])
            yield part
        if count < len(rows):
            raise OSError(f"{len(rows) - count} of {len(rows)} rows could not be read")

    @property
    def _largest(self) -> int:
        return min(self._share, MAX_MERGED_BYTES)

    def _weight(self, name: str, size: int) -> int:
        """Bytes of a file, or what its part of the rows that may be merged would be, if that is more."""
        rows = self._opened[name].rows if name in self._opened else 0
        return max(size, self._largest * rows // MAX_MERGED_ROWS)

    def _worth_merging(self, sizes: dict[str, int]) -> list[str]:
        """The oldest run of neighbours that are small, readable and many, if there is one."""
        since = time.monotonic() - UNREADABLE_SECONDS
        self._unreadable = {name: at for name, at in self._unreadable.items() if at > since}
        sizes = {name: self._weight(name, size) for name, size in sizes.items() if not is_reservoir(name)}
        largest = self._largest
        span = np.inf if self._max_age_seconds is None else self._max_age_seconds * 1e9 / AGES
        for tier, smaller in zip(TIERS, (np.inf, *TIERS), strict=False):
            run: list[str] = []
            run_bytes = 0
            for name, size in [*sizes.items(), ("", largest)]:
                is_small = size <= largest // tier and name not in self._unreadable
                is_full = run_bytes + size > largest or len(run) == MAX_FILES
                if run and (not is_small or is_full or nanoseconds(name) - nanoseconds(run[0]) > span):
                    many = sum(sizes[one] > largest / smaller for one in run) >= FAN_IN
                    if many or (is_small and is_full and len(run) > 1):
                        return run
                    run, run_bytes = [], 0
                if is_small:
                    run.append(name)
                    run_bytes += size
        return []


def _within(shard: Shard, ranges: Ranges) -> Iterator[Origin]:
    start = 0
    for origin in shard.origins:
        if any(first <= start < end for first, end in ranges):
            yield origin
        start += origin.rows
