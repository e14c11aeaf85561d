"""The replay buffer: append-only Parquet shards at an fsspec URL, read through `datasets`.

Protocol. A shard is written under a `.tmp` name and appears by rename, so a reader sees whole
shards only and a crash loses at most the samples not yet handed to `append`. Shard names sort by
time. Shards are never changed; the oldest are deleted once the buffer outgrows `max_bytes`.
"""

import time
import uuid
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset

from pipeline.records import ReplaySample

SCHEMA = pa.schema(
    [
        ("request_id", pa.string()),
        ("created_at", pa.float64()),
        ("domain", pa.string()),
        ("temperature", pa.float32()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("output_ids", pa.list_(pa.int32())),
        ("target_top_ids", pa.list_(pa.int32())),  # [N, K], row-major
        ("target_top_logprobs", pa.list_(pa.float16())),
        ("target_tail_logprob", pa.list_(pa.float32())),
        ("drafted_ids", pa.list_(pa.int32())),
        ("accepted", pa.list_(pa.bool_())),
        ("draft_versions", pa.list_(pa.int32())),
    ]
)


@dataclass(frozen=True)
class ReplayStats:
    shards: int
    bytes: int
    requests: int
    output_tokens: int
    drafted: int
    rejected: int
    requests_by_domain: dict[str, int]
    requests_by_draft_version: dict[int, int]
    oldest: float | None
    newest: float | None


def is_held_out(request_id: str, fraction: float) -> bool:
    """Whether a request belongs to the gate's split: fixed by its id, so that every job agrees."""
    return zlib.crc32(request_id.encode()) / 2**32 < fraction


def _to_row(sample: ReplaySample) -> dict:
    return {name: _flat(getattr(sample, name)) for name in SCHEMA.names}


def _flat(value: object) -> object:
    return value.reshape(-1) if isinstance(value, np.ndarray) else value


def sample_from_row(row: dict) -> ReplaySample:
    """The `ReplaySample` of one row of a dataset that `ReplayBuffer.load` returned."""
    length = len(row["output_ids"])
    return ReplaySample(
        request_id=row["request_id"],
        created_at=row["created_at"],
        domain=row["domain"],
        temperature=row["temperature"],
        prompt_ids=np.asarray(row["prompt_ids"], np.int32),
        output_ids=np.asarray(row["output_ids"], np.int32),
        target_top_ids=np.asarray(row["target_top_ids"], np.int32).reshape(length, -1),
        target_top_logprobs=np.asarray(row["target_top_logprobs"], np.float16).reshape(length, -1),
        target_tail_logprob=np.asarray(row["target_tail_logprob"], np.float32),
        drafted_ids=np.asarray(row["drafted_ids"], np.int32),
        accepted=np.asarray(row["accepted"], bool),
        draft_versions=np.asarray(row["draft_versions"], np.int32),
    )


class ReplayBuffer:
    """Shards at `url` (a local folder or any fsspec URL). One process appends, any number read."""

    def __init__(self, url: str, max_bytes: int = 2_000_000_000) -> None:
        self.max_bytes = max_bytes
        self._fs, self._root = fsspec.core.url_to_fs(url)
        self._fs.makedirs(self._root, exist_ok=True)

    def append(self, samples: Sequence[ReplaySample]) -> str:
        """Commit `samples` as one shard and return its name; then delete what is over `max_bytes`."""
        name = f"shard-{time.time_ns():020d}-{uuid.uuid4().hex[:8]}.parquet"
        table = pa.Table.from_pylist([_to_row(sample) for sample in samples], schema=SCHEMA)
        temporary = f"{self._root}/.{name}.tmp"
        with self._fs.open(temporary, "wb") as file:
            pq.write_table(table, file, compression="zstd")
        self._fs.mv(temporary, f"{self._root}/{name}")
        self._drop_oldest()
        return name

    def shards(self) -> list[str]:
        """Names of the committed shards, oldest first."""
        return [path.rsplit("/", 1)[-1] for path in self._sizes()]

    def load(self, newest: int | None = None) -> Dataset:
        """All samples, oldest first, or the `newest` many; rows turn into samples by `sample_from_row`."""
        tables: list[pa.Table] = []
        requests = 0
        for name in reversed(self.shards()):
            if newest is not None and requests >= newest:
                break
            try:
                with self._fs.open(f"{self._root}/{name}", "rb") as file:
                    tables.append(pq.read_table(file, schema=SCHEMA))
            except FileNotFoundError:  # retention deleted it since we listed
                continue
            requests += tables[-1].num_rows
        table = pa.concat_tables(tables[::-1]) if tables else SCHEMA.empty_table()
        if newest is not None and table.num_rows > newest:
            table = table.slice(table.num_rows - newest)
        return Dataset(table)

    def stats(self) -> ReplayStats:
        sizes = self._sizes()
        columns = ["created_at", "domain", "output_ids", "drafted_ids", "accepted", "draft_versions"]
        rows = self.load().select_columns(columns).with_format("numpy")
        domains: Counter[str] = Counter()
        versions: Counter[int] = Counter()
        tokens = drafted = accepted = 0
        times: list[float] = []
        for row in rows:
            domains[str(row["domain"])] += 1
            versions[int(row["draft_versions"][-1])] += 1
            tokens += len(row["output_ids"])
            drafted += int((row["drafted_ids"] >= 0).sum())
            accepted += int(row["accepted"].sum())
            times.append(float(row["created_at"]))
        return ReplayStats(
            shards=len(sizes),
            bytes=sum(sizes.values()),
            requests=len(times),
            output_tokens=tokens,
            drafted=drafted,
            rejected=drafted - accepted,
            requests_by_domain=dict(domains),
            requests_by_draft_version=dict(versions),
            oldest=min(times, default=None),
            newest=max(times, default=None),
        )

    def _sizes(self) -> dict[str, int]:
        entries = self._fs.ls(self._root, detail=True, refresh=True)
        shards = {e["name"]: e["size"] for e in entries if e["name"].endswith(".parquet")}
        return dict(sorted(shards.items()))

    def _drop_oldest(self) -> None:
        sizes = self._sizes()
        total = sum(sizes.values())
        for path in list(sizes)[:-1]:  # the shard just written always stays
            if total <= self.max_bytes:
                return
            self._fs.rm_file(path)
            total -= sizes[path]
