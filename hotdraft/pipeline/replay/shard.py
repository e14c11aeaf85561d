"""One shard: a Parquet file that can tell that it is whole, and what is in it.

Between the row groups and the footer, where readers of Parquet do not look, stand the index of the rows, a CRC-32
of each row group, and, where shards were merged, in which of them the rows were first committed. The file's name
holds the CRC-32 of all that and of the footer. So every byte is covered, and a reader of a few rows checks what it
reads alone. The footer is parsed for the rows only: it grows with the row groups, and takes longer than the index.
Older shards have none of this. They are read as a whole, and what they hold is checked as far as it can be.
"""

import io
import json
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hotdraft.pipeline.replay.index import INDEX, index_of
from hotdraft.pipeline.replay.schema import check_columns, completed, with_added

TAIL_BYTES = 65_536
"""Read at once from a file's end, in the hope that it is all of the footer."""
MAGIC = b"PAR1"
LENGTHS = struct.Struct("<QQ")
"""Of what stands before the footer: JSON of the row groups and origins, and the index as Arrow's stream."""
NAME_CRC = re.compile(r"\.([0-9a-f]{8})(\.merged)?\.parquet$")

Read = Callable[[int, int], bytes]
"""Bytes of a file from an offset up to another. Raises OSError, `FileNotFoundError` if the file is gone."""


class ShardError(ValueError):
    """A file that is no shard, or not as it was written; the message says why."""


class Origin(NamedTuple):
    """Rows that were committed together; they stay next to each other."""

    name: str
    """Of the shard that they were first in."""
    rows: int


class Groups(NamedTuple):
    """The row groups, each with rows and bytes from where the one before ends."""

    rows: list[int]
    ends: list[int]
    crcs: list[int]


@dataclass(frozen=True)
class Shard:
    """What the end of a file says."""

    name: str
    size: int
    rows: int
    origin_names: Sequence[str]
    origin_rows: Sequence[int]
    """Flat, as there are tens of thousands of them: objects of their own cost more than all else of a start."""
    groups: Groups | None
    """None in an older shard."""
    index: pa.Table | None
    """In the schema `INDEX`; None if it was not kept."""
    _parsed: list[pq.FileMetaData] = field(default_factory=list, compare=False, repr=False)

    @property
    def origins(self) -> list[Origin]:
        return list(map(Origin, self.origin_names, self.origin_rows))

    @cached_property
    def origin_set(self) -> frozenset[str]:
        return frozenset(self.origin_names)

    def metadata(self, read: Read) -> pq.FileMetaData:
        """Where in the file the columns are; kept once it was read."""
        if not self._parsed:
            _, _, footer = _end(self.name, self.size, read)
            with _parsing():
                self._parsed.append(pq.read_metadata(pa.BufferReader(footer)))
        return self._parsed[0]

    def without_index(self) -> Self:
        """Less to keep."""
        return replace(self, index=None)


def open_shard(name: str, size: int, read: Read) -> Shard:
    """The shard of this name and size in bytes. Raises `ShardError`, and what `read` raises."""
    named = NAME_CRC.search(name)
    if named is None:
        _check_old(size, read)
        index = index_of(_old_table(read(0, size)))
        return Shard(name, size, len(index), (name,), (len(index),), None, index)
    about, packed, _ = _end(name, size, read)
    with _parsing():
        found = pa.ipc.open_stream(packed, options=pa.ipc.IpcReadOptions(use_threads=False)).read_all()
        index = with_added(found, INDEX).select(INDEX.names)  # a later release's may say more
        said = json.loads(about)
        groups = Groups(*said["groups"])
        names, rows = said["origins"]
    return Shard(name, size, len(index), names or (name,), rows or (len(index),), groups, index)


def read_rows(shard: Shard, read: Read, rows: Sequence[int] | np.ndarray | None = None) -> Iterator[pa.Table]:
    """`rows`, ascending, or all, in the schema of shards, a table a row group.

    Raises `ShardError` if they are not what was written, and what `read` raises.
    """
    wanted = np.arange(shard.rows) if rows is None else np.asarray(rows, np.int64)
    if shard.groups is None:
        yield _old_table(read(0, shard.size)).take(wanted)
        return
    metadata = shard.metadata(read)
    groups = shard.groups
    ends = np.cumsum(groups.rows)
    group_of = np.searchsorted(ends, wanted, side="right")
    for number in np.unique(group_of).tolist():
        begin, end = groups.ends[number - 1] if number else 0, groups.ends[number]
        data = read(begin, end)
        if zlib.crc32(data) != groups.crcs[number]:
            raise ShardError(f"its bytes {begin} to {end} are not those that were written")
        with _parsing():
            file = pq.ParquetFile(_Excerpt(data, begin, shard.size), metadata=metadata, pre_buffer=False)
            table = with_added(file.read_row_group(number, use_threads=False).replace_schema_metadata(None))
        rows_of = wanted[group_of == number] - (ends[number] - groups.rows[number])
        yield table if len(rows_of) == groups.rows[number] else table.take(rows_of)


def is_merged(name: str) -> bool:
    return name.endswith(".merged.parquet")


def _end(name: str, size: int, read: Read) -> tuple[bytes, bytes, bytes]:
    """What stands before the footer, in its two parts, and the footer."""
    named = NAME_CRC.search(name)
    assert named is not None
    tail, footer = _tail(size, read, LENGTHS.size)
    start = size - len(tail)
    about, index = LENGTHS.unpack_from(tail, len(tail) - footer - LENGTHS.size)
    needed = about + index + LENGTHS.size + footer
    if needed > size:
        raise ShardError("its index is cut off")
    if needed > len(tail):
        tail = read(size - needed, start) + tail
    tail = tail[-needed:]
    if zlib.crc32(tail) != int(named[1], 16):
        raise ShardError("its footer or index is not the one that was written")
    return tail[:about], tail[about : about + index], tail[-footer:]


def _tail(size: int, read: Read, before: int = 0) -> tuple[bytes, int]:
    """The end of a file with the footer and `before` bytes at least before it, and the bytes of the footer."""
    start = max(0, size - TAIL_BYTES)
    tail = read(start, size)
    if tail[-4:] != MAGIC:
        raise ShardError("it does not end as Parquet does")
    footer = int.from_bytes(tail[-8:-4], "little") + 8
    if footer + before > size:
        raise ShardError("its footer is cut off")
    if footer + before > len(tail):
        tail = read(size - footer - before, start) + tail
    return tail, footer


def _check_old(size: int, read: Read) -> None:
    """By its end alone: what is none of ours may be larger than memory."""
    tail, footer = _tail(size, read)
    with _parsing(has_crc=False):
        check_columns(pq.read_schema(pa.BufferReader(tail[-footer:])).names)


def _old_table(data: bytes) -> pa.Table:
    with _parsing(has_crc=False):
        table = completed(pq.read_table(pa.BufferReader(data)))
    return table


@contextmanager
def _parsing(*, has_crc: bool = True) -> Iterator[None]:
    """Whatever comes of bytes that are no shard is a `ShardError`; nothing is read in here that may be away.

    That memory is short says nothing of bytes that match their CRC; of broken ones without Arrow says so, too.
    """
    try:
        yield
    except Exception as error:  # Arrow says of broken bytes that they are an OSError
        if isinstance(error, ShardError) or (has_crc and isinstance(error, MemoryError)):
            raise
        raise ShardError(str(error).partition("\n")[0] or type(error).__name__) from error


class _Excerpt(io.BytesIO):
    """A file of `size` bytes, of which only `data` at `start` is there to be read."""

    def __init__(self, data: bytes, start: int, size: int) -> None:
        super().__init__(data)
        self._start, self._size = start, size

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: self._size}[whence]
        return super().seek(max(0, position - self._start)) + self._start

    def tell(self) -> int:
        return super().tell() + self._start
