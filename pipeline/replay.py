"""The replay buffer: append-only Parquet shards at an fsspec URL, read through `datasets`.

Protocol. A shard is written under a `.tmp` name and appears by rename, so a reader sees whole
shards only and a crash loses at most the samples not yet handed to `append`. Shard names sort by
time. Shards are never changed; the oldest are deleted once the buffer outgrows `max_bytes` or they are
older than `max_age_seconds`, and so is what a killed writer left half written. Before a shard goes, its
requests are offered to the reservoir, which keeps a fair sample of each domain.
"""

import time
import uuid
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset

from pipeline.config import HotdraftConfig
from pipeline.records import ReplaySample
from pipeline.reservoir import take_in

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


RESERVOIR = "reservoir.parquet"
DAY_SECONDS = 86400
ABANDONED_SECONDS = 3600
"""Age at which an unfinished shard is taken to have lost its writer."""


@dataclass(frozen=True)
class ReplaySize:
    """Of the committed shards, the reservoir left out."""

    shards: int
    bytes: int
    requests: int


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


def is_held_out(prompt_ids: Sequence[int] | np.ndarray, fraction: float) -> bool:
    """Whether a prompt [P] belongs to the gate's split: fixed by its tokens, so that all its answers do."""
    return zlib.crc32(np.asarray(prompt_ids, np.int32).tobytes()) / 2**32 < fraction


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

    def __init__(
        self,
        url: str,
        max_bytes: int = 2_000_000_000,
        *,
        max_age_seconds: float | None = None,
        reservoir_requests: int = 0,
    ) -> None:
        """`reservoir_requests` of each domain are kept for good; 0 keeps none."""
        self.max_bytes = max_bytes
        self._max_age_seconds = max_age_seconds
        self._reservoir_requests = reservoir_requests
        self._num_rows: dict[str, int] = {}
        self._fs, self._root = fsspec.core.url_to_fs(url)
        self._fs.makedirs(self._root, exist_ok=True)

    @classmethod
    def of(cls, config: HotdraftConfig) -> Self:
        """The buffer that `config` names."""
        replay = config.replay
        return cls(
            config.replay_url,
            replay.max_bytes,
            max_age_seconds=None if replay.max_age_days is None else replay.max_age_days * DAY_SECONDS,
            reservoir_requests=replay.reservoir_requests,
        )

    def append(self, samples: Sequence[ReplaySample]) -> str:
        """Commit `samples` as one shard and return its name; then delete what is too much or too old."""
        name = f"{_shard_prefix(time.time())}-{uuid.uuid4().hex[:8]}.parquet"
        table = pa.Table.from_pylist([_to_row(sample) for sample in samples], schema=SCHEMA)
        self._write(table, name)
        self._clean_up()
        return name

    def shards(self) -> list[str]:
        """Names of the committed shards, oldest first."""
        return list(self._sizes())

    def load(self) -> Dataset:
        """All samples, the reservoir's and then the shards', oldest first; for `sample_from_row`."""
        names = [RESERVOIR, *self.shards()]
        return Dataset(pa.concat_tables([SCHEMA.empty_table(), *(self._table(n).cast(SCHEMA) for n in names)]))

    def read(self, shard: str, columns: list[str]) -> Dataset:
        """These columns of the samples of one shard; no rows if retention deleted it since it was listed."""
        return Dataset(self._table(shard, columns))

    def size(self) -> ReplaySize:
        """Cheap once every shard's footer was read, which happens once for each; for one thread at a time."""
        sizes = self._sizes()
        self._num_rows = {name: self._num_rows.get(name) or self._count_rows(name) for name in sizes}
        return ReplaySize(len(sizes), sum(sizes.values()), sum(self._num_rows.values()))

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
            versions.update(row["draft_versions"][-1:].tolist())
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

    def _write(self, table: pa.Table, name: str) -> None:
        temporary = f"{self._root}/.{name}.tmp"
        with self._fs.open(temporary, "wb") as file:
            pq.write_table(table, file, compression="zstd")
        self._fs.mv(temporary, f"{self._root}/{name}")

    def _table(self, shard: str, columns: list[str] | None = None) -> pa.Table:
        try:
            with self._fs.open(f"{self._root}/{shard}", "rb") as file:
                return pq.read_table(file, columns=columns)
        except FileNotFoundError:
            return SCHEMA.empty_table().select(columns or SCHEMA.names)

    def _count_rows(self, shard: str) -> int:
        try:
            with self._fs.open(f"{self._root}/{shard}", "rb") as file:
                return pq.read_metadata(file).num_rows
        except FileNotFoundError:  # retention deleted it since it was listed
            return 0

    def _sizes(self, suffix: str = ".parquet") -> dict[str, int]:
        """Bytes of each file by name, oldest first."""
        entries = self._fs.ls(self._root, detail=True, refresh=True)
        sizes = {entry["name"].rsplit("/", 1)[-1]: entry["size"] for entry in entries}
        return {name: sizes[name] for name in sorted(sizes) if name.endswith(suffix) and name != RESERVOIR}

    def _clean_up(self) -> None:
        abandoned = "." + _shard_prefix(time.time() - ABANDONED_SECONDS)
        for name in self._sizes(".tmp"):
            if name.startswith(".shard-") and name < abandoned:
                self._fs.rm_file(f"{self._root}/{name}")
        sizes = self._sizes()
        total = sum(sizes.values())
        for name in list(sizes)[:-1]:  # the shard just written always stays
            if total <= self.max_bytes and not self._is_old(name):
                return
            if self._reservoir_requests:  # before it is gone: a crash in between leaves rows twice, and loses none
                kept = take_in(self._table(RESERVOIR), self._table(name), self._reservoir_requests)
                self._write(kept, RESERVOIR)
            self._fs.rm_file(f"{self._root}/{name}")
            total -= sizes[name]

    def _is_old(self, shard: str) -> bool:
        return self._max_age_seconds is not None and shard < _shard_prefix(time.time() - self._max_age_seconds)


def _shard_prefix(seconds: float) -> str:
    """The start of the name of a shard written at Unix time `seconds`: names sort by time."""
    return f"shard-{int(seconds * 1e9):020d}"
