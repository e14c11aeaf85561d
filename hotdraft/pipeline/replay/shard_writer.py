"""Writing a shard, see `pipeline.replay.shard`."""

import io
import json
import zlib
from collections.abc import Iterable, Sequence
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from hotdraft.pipeline.replay.index import INDEX
from hotdraft.pipeline.replay.schema import SCHEMA
from hotdraft.pipeline.replay.shard import LENGTHS, Groups, Origin

GROUP_ROWS = 1024
GROUP_BYTES = 5_000_000
"""Of a row group in memory, about: what is read and checked for the sake of one row."""


def written(file: IO[bytes], parts: Iterable[tuple[pa.Table, pa.Table]], origins: Sequence[Origin] = ()) -> int:
    """Write rows with their index, part by part; gives the CRC for the name."""
    writer = _Writer(file)
    for table, index in parts:
        writer.add(table, index)
    return writer.finish(origins)


class _Writer:
    """Writes rows to a file that is open for writing; `finish` gives the CRC for its name."""

    def __init__(self, file: IO[bytes]) -> None:
        self._sink = _Sink(file)
        self._writer = pq.ParquetWriter(self._sink, SCHEMA, compression="zstd", write_statistics=False)
        self._held: list[pa.Table] = []
        self._held_rows = self._held_bytes = 0
        self._indices: list[pa.Table] = []
        self._groups = Groups([], [], [])

    def add(self, table: pa.Table, index: pa.Table) -> None:
        """Rows and their index."""
        self._indices.append(index)
        row_bytes = max(1, table.nbytes // max(1, len(table)))
        step = max(1, min(GROUP_ROWS, GROUP_BYTES // row_bytes))
        for start in range(0, len(table), step):
            self._held.append(table.slice(start, step))
            self._held_rows += len(self._held[-1])
            self._held_bytes += row_bytes * len(self._held[-1])
            if self._held_rows >= GROUP_ROWS or self._held_bytes >= GROUP_BYTES:
                self._flush()

    def finish(self, origins: Sequence[Origin] = ()) -> int:
        """`origins` are those of the rows in order; without any the shard itself is their origin."""
        self._flush()
        about = json.dumps({"groups": self._groups, "origins": [*zip(*origins, strict=True)] or [[], []]}).encode()
        index = _packed(pa.concat_tables([INDEX.empty_table(), *self._indices]))
        self._sink.write(about + index + LENGTHS.pack(len(about), len(index)))
        self._writer.close()
        return self._sink.take_crc()

    def _flush(self) -> None:
        if rows := self._held_rows:
            self._writer.write_table(pa.concat_tables(self._held), row_group_size=rows)
            for values, value in zip(self._groups, (rows, self._sink.tell(), self._sink.take_crc()), strict=True):
                values.append(value)
            self._held.clear()
            self._held_rows = self._held_bytes = 0


def _packed(index: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
    with pa.ipc.new_stream(sink, INDEX, options=options) as writer:
        writer.write_table(index.combine_chunks())
    return sink.getvalue().to_pybytes()


class _Sink(io.RawIOBase):
    """Passes on what is written, with a running CRC-32."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._crc = self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if not self._file.closed:  # Arrow ends a file that was given up when its writer is collected
            self._file.write(data)
        self._crc = zlib.crc32(data, self._crc)
        self._position += len(data)
        return len(data)

    def tell(self) -> int:
        return self._position

    def take_crc(self) -> int:
        """Of all that was written since it was last taken."""
        crc, self._crc = self._crc, 0
        return crc
