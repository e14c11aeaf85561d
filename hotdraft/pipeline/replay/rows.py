"""Recorded requests by their index; what they hold is fetched when it is asked for."""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hotdraft.pipeline.replay.counted import is_reservoir
from hotdraft.pipeline.replay.index import index_of, may_be_of
from hotdraft.pipeline.replay.schema import SCHEMA, pieces
from hotdraft.pipeline.replay.shard import Shard


@dataclass(frozen=True)
class Place:
    """Rows that stand one after the other in a shard."""

    shard: Shard
    start: int
    rows: int


class Source(Protocol):
    def fetch(self, shard: Shard, rows: Sequence[int]) -> pa.Table | None: ...
    def rows(self) -> "ReplayRows": ...


class ReplayRows:
    """Requests in an order, of the schema `INDEX`; memory is that of the index, whatever the requests hold."""

    def __init__(self, source: Source, index: pa.Table, places: Sequence[Place]) -> None:
        """`index` is of the rows of `places`, one after the other."""
        self._source = source
        self._whole = index
        self._places = list(places)
        self._starts = np.cumsum([0, *(place.rows for place in places)])
        self._chosen: np.ndarray = np.arange(len(index))
        """Of each row, which of the whole index it is."""
        self._is_all = True
        self._at = self._chosen.copy()
        """Of each row, where in all the places it stands; -1 once it is gone."""

    @classmethod
    def of(cls, table: pa.Table) -> Self:
        """Those of `table`, which is of the schema of shards and stays in memory."""
        return cls(_InMemory(table), index_of(table), [Place(_NO_SHARD, 0, len(table))])

    def following(self, table: pa.Table) -> "ReplayRows":
        """Those of `table`, which stays in memory, and then these, which must be all of their source."""
        assert self._is_all, "a part of its source cannot be found again behind others"
        source = _InMemory(table, self._source)
        places = [Place(_NO_SHARD, 0, len(table)), *self._places]
        return ReplayRows(source, pa.concat_tables([index_of(table), self._whole]), places)

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, column: str) -> list:
        """A column of the index."""
        return self._column(column).to_pylist()

    @property
    def index(self) -> pa.Table:
        return self._whole if self._is_all else self._whole.take(self._chosen)

    def may_be_of(self, target_id: str) -> np.ndarray:
        """bool [R]: which a target may have answered."""
        return may_be_of(self._whole, target_id)[self._chosen]

    @property
    def newest(self) -> str:
        """Id of the last request."""
        return self._whole["request_id"][int(self._chosen[-1])].as_py()

    @property
    def oldest(self) -> str:
        """Id of the first request."""
        return self._whole["request_id"][int(self._chosen[0])].as_py()

    def column(self, name: str) -> np.ndarray:
        """A copy of a column of numbers [R]."""
        return self._whole[name].to_numpy()[self._chosen]

    @property
    def domains(self) -> tuple[np.ndarray, list[str]]:
        """Number [R] of each row's domain, and the names by number; there may be names without a row."""
        numbers, names = self._encoded
        return numbers[self._chosen], names

    def select(self, rows: Sequence[int] | np.ndarray | range) -> Self:
        """These rows, in this order; of the index no copy is made."""
        chosen = np.asarray(rows, np.int64)
        found = copy(self)
        found._chosen, found._at, found._is_all = self._chosen[chosen], self._at[chosen], False
        return found

    def position(self, request_id: str) -> int | None:
        """Of a request, the last of this id."""
        found = np.flatnonzero(pc.equal(self._column("request_id"), request_id).to_numpy())
        return int(found[-1]) if len(found) else None

    def after(self, request_id: str) -> Self:
        """Those that come after a request; none if it is not there."""
        position = self.position(request_id)
        return self.select(range(len(self) if position is None else position + 1, len(self)))

    def up_to(self, request_id: str) -> Self | None:
        """Those up to a request and with it; None once its shard is gone, of which the reservoir may keep it."""
        position = self.position(request_id)
        if position is None or self._at[position] < 0:
            return None
        place = self._places[int(np.searchsorted(self._starts, self._at[position], side="right")) - 1]
        return None if is_reservoir(place.shard.name) else self.select(range(position + 1))

    def table(self, rows: Sequence[int] | np.ndarray | range) -> pa.Table:
        """`rows` in the schema of shards, in this order, without those that are gone.

        They are gone if retention deleted them or their shard was set aside. Raises OSError if the buffer is away.
        """
        return self._fetch(np.asarray(rows, np.int64))[0]

    def read(self, rows: Sequence[int] | np.ndarray | range) -> Iterator[tuple[int, dict]]:
        """Each of `rows` that is there, in order, with its columns for `sample_from_row`; raises like `table`."""
        if not len(rows):  # as those who keep what they read ask again and again
            return
        table, found = self._fetch(np.asarray(rows, np.int64))
        columns = [pieces(table[name]) for name in SCHEMA.names]
        for row, *values in zip(found.tolist(), *columns, strict=True):
            yield row, dict(zip(SCHEMA.names, values, strict=True))

    @cached_property
    def _encoded(self) -> tuple[np.ndarray, list[str]]:
        encoded = pc.dictionary_encode(self._whole["domain"]).combine_chunks()
        return encoded.indices.to_numpy(), encoded.dictionary.to_pylist()

    def _column(self, name: str) -> pa.ChunkedArray:
        column = self._whole[name]
        return column if self._is_all else column.take(pa.array(self._chosen))

    def _fetch(self, rows: np.ndarray) -> tuple[pa.Table, np.ndarray]:
        """The rows that are there, and which these are."""
        tables: list[pa.Table] = [SCHEMA.empty_table()]
        found: list[np.ndarray] = [np.empty(0, np.int64)]
        there = np.unique(rows[self._at[rows] >= 0])
        there = there[np.argsort(self._at[there], kind="stable")]
        place_of = np.searchsorted(self._starts, self._at[there], side="right") - 1
        for number in np.unique(place_of):
            place = self._places[number]
            of_place = there[place_of == number]
            within = self._at[of_place] - self._starts[number] + place.start
            try:
                table = self._source.fetch(place.shard, within)
            except FileNotFoundError:
                self._find_again()
                return self._fetch(rows)
            if table is None:
                self._at[of_place] = -1
            else:
                tables.append(table)
                found.append(of_place)
        fetched = np.concatenate(found)
        order = np.argsort(fetched)
        wanted = rows[np.isin(rows, fetched)]
        chosen = order[np.searchsorted(fetched[order], wanted)] if len(fetched) else wanted
        table = pa.concat_tables(tables)
        if np.array_equal(chosen, np.arange(len(table))):  # of all that there is no copy is made
            return table, wanted
        return table.take(chosen), wanted

    def _find_again(self) -> None:
        """Shards were merged or deleted since the index was read: the rows may be elsewhere."""
        now = self._source.rows()
        at = pc.index_in(self._column("request_id"), value_set=now.index["request_id"].combine_chunks())
        found = pc.fill_null(at, -1).to_numpy().astype(np.int64)
        self._at = np.where(self._at >= 0, found, -1)
        self._places, self._starts = now._places, now._starts


_NO_SHARD = Shard("", 0, 0, (), (), None, None)


class _InMemory:
    def __init__(self, table: pa.Table, rest: Source | None = None) -> None:
        """`rest` has what comes after."""
        self._table = table
        self._batches = table.to_batches()
        self._ends = np.cumsum([len(batch) for batch in self._batches])
        self._rest = rest

    def fetch(self, shard: Shard, rows: Sequence[int]) -> pa.Table | None:
        """Row by row: Arrow's own `take` makes a copy of all batches first."""
        if shard is not _NO_SHARD and self._rest is not None:
            return self._rest.fetch(shard, rows)
        found = []
        for row in rows:
            number = int(np.searchsorted(self._ends, row, side="right"))
            batch = self._batches[number]
            found.append(batch.slice(int(row) - int(self._ends[number]) + len(batch), 1))
        return pa.Table.from_batches(found, SCHEMA)

    def rows(self) -> ReplayRows:
        assert self._rest is not None, "what is in memory is never elsewhere"
        return self._rest.rows().following(self._table)
