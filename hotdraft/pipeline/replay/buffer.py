"""The replay buffer: append-only Parquet shards at an fsspec URL, read by their index.

Protocol. A shard is written under a `.tmp` name, is on the disk, and appears by rename, so a reader sees whole
shards only and a crash loses at most the samples not yet handed to `append`. Shard names sort by
time. Shards are never changed; small ones are merged, the oldest are deleted once the buffer outgrows
`max_bytes` or they are older than `max_age_seconds`, and so is what a killed writer left half written. Before a
shard goes, its requests are offered to the reservoir, which keeps a fair sample of each domain. Any number of
processes append and read. What is no shard is set aside, counted and passed over, see `pipeline.replay.folder`.
"""

import errno
import hashlib
from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pyarrow.compute as pc

from hotdraft.pipeline.config.origins import without_password
from hotdraft.pipeline.config.section import ConfigError
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.replay.counted import Ranges, counted, is_reservoir, newest_reservoir
from hotdraft.pipeline.replay.folder import ShardFolder, stem_behind
from hotdraft.pipeline.replay.index import INDEX, index_of
from hotdraft.pipeline.replay.rows import Place, ReplayRows
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.pipeline.replay.schema import SCHEMA, is_held_out, sample_from_row, table_of
from hotdraft.pipeline.replay.shard import Shard, read_rows
from hotdraft.pipeline.replay.shard_writer import written
from hotdraft.pipeline.replay.stats import ReplayStats, drafted_counts
from hotdraft.pipeline.replay.upkeep import Upkeep

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["SCHEMA", "ReplayBuffer", "ReplaySize", "is_held_out", "sample_from_row"]

DAY_SECONDS = 86400
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
FREED_BYTES = 64_000
"""At least, when the disk is full: twice what a shard of few short requests takes, several times over."""
LISTINGS = 5
"""Times that the folder is listed again because shards were merged or deleted while they were opened."""


@dataclass(frozen=True)
class ReplaySize:
    """Of the committed shards, the reservoir left out."""

    shards: int
    bytes: int
    requests: int
    quarantined: int = 0
    """Files that were set aside."""


class ReplayBuffer:
    """Shards at `url` (a local folder or any fsspec URL). For one thread at a time."""

    def __init__(
        self,
        url: str,
        max_bytes: int | None = None,
        *,
        max_age_seconds: float | None = None,
        reservoir_requests: int = 0,
    ) -> None:
        """`reservoir_requests` of each domain are kept for good, as far as they fit; 0 keeps none. Without a bound
        nothing is deleted while the disk has room: a server whose bound is another may own the buffer."""
        self._folder = ShardFolder(url)
        self._upkeep = Upkeep(self._folder, max_bytes, max_age_seconds, reservoir_requests)
        self._shards: dict[str, Shard] = {}
        """What was listed last, opened."""
        self._ranges: dict[str, Ranges] | None = None
        self._freed_in_vain = False
        """Whether the disk was full still once the oldest shards had made room."""

    @classmethod
    def of(cls, config: HotdraftConfig, *, may_be_away: bool = False) -> Self:
        """The buffer that `config` names. Raises `ConfigError` where it cannot be opened.

        A store that is not of this machine `may_be_away` for whoever has other things to do than to record.
        """
        replay = config.replay
        try:
            buffer = cls(
                config.replay_url,
                replay.max_bytes,
                max_age_seconds=None if replay.max_age_days is None else replay.max_age_days * DAY_SECONDS,
                reservoir_requests=replay.reservoir_requests,
            )
            if not may_be_away:
                buffer._folder.make()
        except (OSError, ValueError, ImportError) as error:  # no such folder, protocol, or package for the protocol
            shown, why = without_password(config.replay_url), without_password(str(error))
            raise ConfigError(
                f"the replay buffer {shown} cannot be opened: {why}: "
                "set replay.url to a folder or bucket that this user may write"
            ) from error
        return buffer

    @classmethod
    def at(cls, place: "ReplayBuffer | str | Path") -> "ReplayBuffer":
        """The buffer in a folder or at a URL, if it is not one already."""
        return place if isinstance(place, ReplayBuffer) else cls(str(place))

    @property
    def errors(self) -> int:
        """Times that a file could not be read, or the folder not be kept in order, for now."""
        return self._folder.errors

    def append(self, samples: Sequence[ReplaySample], make_room: Callable[[], None] | None = None) -> str:
        """Commit `samples` as one shard and return its name; then merge, and delete what is too much or too old.

        Raises only if `samples` cannot be committed, ValueError if they do not fit the schema. A full disk
        costs what `make_room` deletes and only then the oldest shards, unless others take what these leave. What
        else goes wrong is counted in `errors` and logged.
        """
        table = table_of(samples)
        part = (table, index_of(table))
        stem: str | None = None

        def commit() -> str:  # a second time under the same name: an answer that got lost leaves no rows twice
            nonlocal stem
            stem = stem or stem_behind(self.shards())
            return self._folder.write(stem, lambda file: written(file, [part]))

        try:
            name = commit()
        except OSError as error:
            is_full = error.errno in DISK_FULL
            if is_full and make_room is not None:
                make_room()
                return self.append(samples)
            if is_full and self._freed_in_vain:
                raise
            self._freed_in_vain = is_full
            if is_full:
                self._keep(2 * table.nbytes + FREED_BYTES)
            name = commit()
        self._freed_in_vain = False
        self._keep()
        return name

    def shards(self) -> list[str]:
        """Names of the committed shards, oldest first."""
        return [name for name in self._folder.files() if not is_reservoir(name)]

    def rows(self) -> ReplayRows:
        """All requests by their index, the reservoir's and then the shards', oldest first."""
        return self._rows_of(self._counted())

    def newest(self, count: int) -> ReplayRows:
        """At most `count` requests, those committed last, oldest first: few shards are opened for them."""
        sizes = self._folder.files()
        newest_first = {name: sizes[name] for name in reversed(sizes) if not is_reservoir(name)}
        found: list[Shard] = []
        missing = count
        for _, shard in self._folder.open_all(newest_first):
            if shard is not None:
                found.append(shard)
                missing -= shard.rows
            if missing <= 0:
                break
        ranges = counted(found)
        rows = self._rows_of([(shard, *place) for shard in reversed(found) for place in ranges[shard.name]])
        return rows.select(range(max(0, len(rows) - count), len(rows)))

    def news(self, known: Set[str]) -> tuple[pa.Table, set[str]]:
        """Index of what was committed to shards, the reservoir left out, and is not of `known`, and what there is.

        `known` and the set are names of shards as they were first committed, whatever became of them. While one
        cannot be read, all that was known stays so: what comes back is not new.
        """
        found: set[str] = set()
        errors = self._folder.errors
        tables = [INDEX.empty_table()]
        for shard, start, end in self._counted():
            if is_reservoir(shard.name):
                continue
            assert shard.index is not None
            if end - start == shard.rows and (not known or shard.origin_set <= known):
                found |= shard.origin_set
                tables += [] if known else [shard.index]
                continue
            fresh: list[tuple[int, int]] = []
            first = 0
            for origin in shard.origins:
                last = first + origin.rows
                if start <= first < end:
                    found.add(origin.name)
                    if origin.name not in known:
                        joined = bool(fresh) and fresh[-1][1] == first
                        fresh.append((fresh.pop()[0] if joined else first, last))
                first = last
            tables += [shard.index.slice(begin, stop - begin) for begin, stop in fresh]
        return pa.concat_tables(tables), found | known if self._folder.errors > errors else found

    def fetch(self, shard: Shard, rows: Sequence[int]) -> pa.Table | None:
        """`rows`, ascending, of one shard, in the schema of shards; None if it was set aside.

        Raises `FileNotFoundError` if it was merged or deleted, and OSError if it cannot be read for now.
        """
        errors = self._folder.errors
        with self._folder.reading(shard.name):
            return pa.concat_tables(read_rows(shard, self._folder.reader(shard.name), rows))
        if self._folder.errors > errors:
            raise OSError(f"{shard.name} in the replay buffer cannot be read for now")
        return None

    def load(self, ids: Collection[str] | None = None) -> "Dataset":
        """All samples, or those of `ids`, in memory, ordered as `rows`; for `sample_from_row`."""
        from datasets import Dataset  # what only writes, as a server does, can do without its 20 MB

        rows = self.rows()
        if ids is not None:
            rows = rows.select([row for row, request_id in enumerate(rows["request_id"]) if request_id in ids])
        digest = hashlib.sha256("\n".join(rows["request_id"]).encode()).hexdigest()[:16]
        # without a fingerprint, `datasets` pickles all of the table to have one
        return Dataset(rows.table(range(len(rows))), fingerprint=digest)

    def size(self) -> ReplaySize:
        """Cheap once every shard's footer was read, which happens once for each."""
        found = [place for place in self._counted(keep_index=False) if not is_reservoir(place[0].name)]
        sizes = {shard.name: shard.size for shard, *_ in found}
        return ReplaySize(
            shards=len(sizes),
            bytes=sum(sizes.values()),
            requests=sum(end - start for _, start, end in found),
            quarantined=len(self._folder.quarantined()),
        )

    def stats(self) -> ReplayStats:
        rows = self.rows()
        sizes = {name: size for name, size in self._folder.files().items() if not is_reservoir(name)}
        index = rows.index
        drafters = index.filter(pc.greater_equal(index["draft_version"], 0))
        drafted = pc.sum(index["drafted"]).as_py() or 0
        times = pc.min_max(index["created_at"]).as_py()
        return ReplayStats(
            shards=len(sizes),
            bytes=sum(sizes.values()),
            requests=len(rows),
            output_tokens=pc.sum(index["output_tokens"]).as_py() or 0,
            drafted=drafted,
            rejected=drafted - (pc.sum(index["accepted"]).as_py() or 0),
            by_domain=drafted_counts(index, "domain"),
            by_draft_version=drafted_counts(drafters, "draft_version"),
            oldest=times["min"],
            newest=times["max"],
            quarantined=tuple(self._folder.quarantined()),
        )

    def _keep(self, needed_bytes: int = 0) -> None:
        try:
            self._upkeep.run(needed_bytes)
        except Exception as error:  # noqa: BLE001  # clients of object stores raise their own; the rows are safe
            self._folder.note_failure("its folder", error)
        else:
            self._folder.note_success("its folder")

    def _rows_of(self, ranges: Sequence[tuple[Shard, int, int]]) -> ReplayRows:
        places = []
        tables = [INDEX.empty_table()]
        for shard, start, end in ranges:
            assert shard.index is not None
            places.append(Place(shard, start, end - start))
            tables.append(shard.index.slice(start, end - start))
        return ReplayRows(self, pa.concat_tables(tables), places)

    def _counted(self, *, keep_index: bool = True) -> list[tuple[Shard, int, int]]:
        """The shards with the ranges of their rows that count; the reservoir first, then the oldest."""
        known: dict[str, Shard | None] = {
            name: shard for name, shard in self._shards.items() if shard.index is not None or not keep_index
        }
        for turn in range(LISTINGS):
            sizes = self._folder.files()
            newest = newest_reservoir([*sizes])
            names = newest + [name for name in sizes if not is_reservoir(name)]
            missing = {name: sizes[name] for name in names if name not in known}
            for name, shard in self._folder.open_all(missing):
                known[name] = shard if shard is None or keep_index else shard.without_index()
            if known.keys() >= {*names} or turn == LISTINGS - 1:  # else some are merged into others, maybe
                break
        found = {name: opened for name in names if (opened := known.get(name)) is not None}
        if self._ranges is None or found.keys() != self._shards.keys():
            self._ranges = counted([*found.values()])
        self._shards = found
        return [(shard, *place) for name, shard in found.items() for place in self._ranges[name]]
