import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
import zlib
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hotdraft.pipeline.replay.buffer import ReplayBuffer, ReplaySize, is_held_out, sample_from_row
from hotdraft.pipeline.replay.index import INDEX, index_of
from hotdraft.pipeline.replay.sample import NOT_DRAFTED, ReplaySample
from hotdraft.pipeline.replay.schema import SCHEMA, with_added
from hotdraft.pipeline.replay.shard import Shard, open_shard
from hotdraft.pipeline.replay.stats import DraftedCounts


def make_sample(request_id: str, *, length: int = 5, top: int = 4, domain: str = "math", version: int = 0):
    rng = np.random.default_rng(zlib.crc32(request_id.encode()))
    drafted = rng.integers(0, 100, length).astype(np.int32)
    drafted[0] = NOT_DRAFTED
    accepted = rng.random(length) < 0.5
    accepted[0] = False
    return ReplaySample(
        request_id=request_id,
        created_at=time.time(),
        domain=domain,
        temperature=0.5,
        prompt_ids=rng.integers(0, 100, 7).astype(np.int32),
        output_ids=rng.integers(0, 100, length).astype(np.int32),
        target_top_ids=rng.integers(0, 100, (length, top)).astype(np.int32),
        target_top_logprobs=-rng.random((length, top)).astype(np.float16),
        target_tail_logprob=-rng.random(length).astype(np.float32),
        drafted_ids=drafted,
        accepted=accepted,
        draft_versions=np.full(length, version, np.int32),
        top_p=0.5,
        top_k=20,
        min_p=0.25,
    )


def request_ids(buffer: ReplayBuffer) -> list[str]:
    return list(buffer.load()["request_id"])


def test_shards_from_before_the_filters_were_recorded_say_that_nothing_was_filtered(tmp_path):
    buffer = ReplayBuffer(str(tmp_path))
    written = tmp_path / buffer.append([make_sample("old")])
    older = pq.read_table(written).drop_columns(["top_p", "top_k", "min_p"])
    pq.write_table(older, tmp_path / f"shard-{time.time_ns():020d}-cafe1234.parquet", compression="zstd")
    written.unlink()
    buffer.append([make_sample("new")])
    old, new = (sample_from_row(row) for row in buffer.load())
    assert (old.top_p, old.top_k, old.min_p) == (1.0, 0, 0.0)
    assert (new.top_p, new.top_k, new.min_p) == (0.5, 20, 0.25)


def test_shards_from_before_salts_and_models_were_recorded_say_that_there_was_none(tmp_path, monkeypatch):
    schema = pa.schema([SCHEMA.field(name) for name in SCHEMA.names[: SCHEMA.names.index("salted")]])
    known = [name for name in INDEX.names if name != "target_id"]
    with monkeypatch.context() as before:
        for module in ("schema", "shard_writer"):
            before.setattr(f"hotdraft.pipeline.replay.{module}.SCHEMA", schema)
        before.setattr("hotdraft.pipeline.replay.shard_writer.INDEX", pa.schema([INDEX.field(n) for n in known]))
        index_then = lambda table: index_of(with_added(table)).select(known)  # noqa: E731
        before.setattr("hotdraft.pipeline.replay.buffer.index_of", index_then)
        ReplayBuffer(str(tmp_path)).append([make_sample("old")])
    buffer = ReplayBuffer(str(tmp_path))
    buffer.append([replace(make_sample("new"), salted=True, target_id="a", draft_id="b")])
    for rows in (buffer.load(), buffer.load().with_format("numpy")):
        found = [sample_from_row(row) for row in rows]
        assert json.dumps([sample.salted for sample in found]) == "[false, true]"
        assert [(sample.target_id, sample.draft_id) for sample in found] == [("", ""), ("a", "b")]
    assert buffer.rows()["target_id"] == ["", "a"]


def test_shards_of_which_a_later_release_says_more_in_the_index_are_read_beside_ours(tmp_path, monkeypatch):
    with monkeypatch.context() as later:
        more = INDEX.append(pa.field("more", pa.int32()))
        later.setattr("hotdraft.pipeline.replay.shard_writer.INDEX", more)
        says_more = lambda table: index_of(table).append_column(more.field("more"), pa.array([1], pa.int32()))  # noqa: E731
        later.setattr("hotdraft.pipeline.replay.buffer.index_of", says_more)
        ReplayBuffer(str(tmp_path)).append([make_sample("later")])
    buffer = ReplayBuffer(str(tmp_path))
    buffer.append([make_sample("ours")])
    assert buffer.rows()["request_id"] == ["later", "ours"]


def test_round_trip_keeps_values_types_and_shapes(tmp_path):
    buffer = ReplayBuffer(str(tmp_path))
    written = [make_sample("a"), make_sample("b", length=3)]
    buffer.append(written)
    read = [sample_from_row(row) for row in ReplayBuffer(str(tmp_path)).load()]
    assert len(read) == 2
    for before, after in zip(written, read, strict=True):
        for name in ReplaySample.__slots__:
            expected, got = getattr(before, name), getattr(after, name)
            if isinstance(expected, np.ndarray):
                assert (got.dtype, got.shape) == (expected.dtype, expected.shape), name
                np.testing.assert_array_equal(got, expected, name)
            else:
                assert got == expected, name


def test_empty_buffer_opens(tmp_path):
    buffer = ReplayBuffer(str(tmp_path / "new"))
    assert len(buffer.load()) == 0
    assert buffer.stats().requests == 0


def test_unfinished_shard_is_not_seen(tmp_path):
    buffer = ReplayBuffer(str(tmp_path))
    name = buffer.append([make_sample("whole")])
    whole = (tmp_path / name).read_bytes()
    (tmp_path / f".shard-{time.time_ns():020d}-cafe.parquet.tmp").write_bytes(whole[: len(whole) // 2])
    assert buffer.shards() == [name]
    assert request_ids(buffer) == ["whole"]
    assert buffer.stats().shards == 1


def test_samples_come_in_the_order_they_were_written(tmp_path):
    buffer = ReplayBuffer(str(tmp_path))
    for first in (0, 3, 6):
        buffer.append([make_sample(str(first + i)) for i in range(3)])
    assert request_ids(buffer) == buffer.rows()["request_id"] == [str(i) for i in range(9)]
    (tmp_path / buffer.shards()[0]).unlink()
    assert request_ids(buffer) == buffer.rows()["request_id"] == [str(i) for i in range(3, 9)]


def test_oldest_shards_go_when_the_buffer_outgrows_its_bytes(tmp_path):
    size = 0
    for round_ in range(6):
        unlimited = ReplayBuffer(str(tmp_path))
        unlimited.append([make_sample(f"old-{round_}", length=20)])
        size = max(size, unlimited.stats().bytes // (round_ + 1))
    limit = int(3.5 * size)
    ReplayBuffer(str(tmp_path), max_bytes=limit).append([make_sample("new", length=20)])
    buffer = ReplayBuffer(str(tmp_path))
    assert buffer.stats().bytes <= limit
    kept = request_ids(buffer)
    assert kept == [f"old-{i}" for i in range(7 - len(kept), 6)] + ["new"]
    assert len(kept) >= 2


def test_newest_shard_stays_even_if_it_alone_is_too_big(tmp_path):
    buffer = ReplayBuffer(str(tmp_path), max_bytes=1)
    buffer.append([make_sample("a")])
    buffer.append([make_sample("b")])
    assert request_ids(buffer) == ["b"]


def test_stats_count_what_was_written(tmp_path):
    buffer = ReplayBuffer(str(tmp_path))
    samples = [
        make_sample("a", length=6, domain="math"),
        make_sample("b", length=4, domain="sql", version=2),
        make_sample("c", length=5, domain="sql", version=2),
    ]
    buffer.append(samples[:1])
    buffer.append(samples[1:])
    stats = buffer.stats()
    assert (stats.shards, stats.requests, stats.output_tokens) == (2, 3, 15)
    assert stats.drafted == 12  # the first position of each has no proposal
    assert stats.rejected == sum(int(sample.rejected.sum()) for sample in samples)
    one, two = counts(samples[:1]), counts(samples[1:])
    assert stats.by_domain == {"math": one, "sql": two}
    assert stats.by_draft_version == {0: one, 2: two}
    assert (two.requests, two.drafted) == (2, 7)
    assert 0 < two.acceptance_rate < 1
    assert (stats.oldest, stats.newest) == (samples[0].created_at, samples[2].created_at)
    assert stats.bytes == sum(path.stat().st_size for path in tmp_path.glob("*.parquet"))


def counts(samples):
    accepted = sum(int(sample.accepted.sum()) for sample in samples)
    drafted = accepted + sum(int(sample.rejected.sum()) for sample in samples)
    return DraftedCounts(len(samples), drafted, accepted, accepted / drafted)


def test_stats_of_a_sample_without_output(tmp_path):
    buffer = ReplayBuffer(str(tmp_path))
    empty = make_sample("a", length=1)
    arrays = {name: getattr(empty, name)[:0] for name in ReplaySample.__slots__[5:12]}
    buffer.append([replace(empty, **arrays), make_sample("b", version=3)])
    stats = buffer.stats()
    assert (stats.requests, stats.output_tokens) == (2, 5)
    assert {version: its.requests for version, its in stats.by_draft_version.items()} == {3: 1}


def test_what_a_killed_writer_left_is_deleted_once_it_is_old(tmp_path):
    def leave(age_seconds: float) -> Path:
        written = time.time_ns() - int(age_seconds * 1e9)
        path = tmp_path / f".shard-{written:020d}-cafe.parquet.tmp"
        path.write_bytes(b"half")
        return path

    young, old, other = leave(600), leave(4000), tmp_path / "notes.tmp"
    other.write_text("not ours")
    ReplayBuffer(str(tmp_path)).append([make_sample("a")])
    assert young.exists()
    assert not old.exists()
    assert other.exists()


def test_held_out_split_is_fixed_and_near_its_fraction():
    prompts = [[1, index, index % 7] for index in range(20_000)]
    held_out = [prompt for prompt in prompts if is_held_out(prompt, 0.15)]
    assert abs(len(held_out) / len(prompts) - 0.15) < 0.01
    assert all(is_held_out(prompt, 0.3) for prompt in held_out), "a larger fraction keeps the smaller split"
    assert all(is_held_out(np.array(prompt, np.int64), 0.15) for prompt in held_out), "however its ids are stored"
    pinned = [i for i in range(40) if is_held_out([1, 2, i], 0.15)]
    assert pinned == [1, 2, 27, 29, 30, 32, 35], "the split must be the same in every process and release"


def test_any_fsspec_url_holds_a_buffer():
    url = f"memory://replay-{uuid.uuid4().hex}"
    ReplayBuffer(url).append([make_sample("a")])
    ReplayBuffer(url).append([make_sample("b")])
    assert request_ids(ReplayBuffer(url)) == ["a", "b"]
    filesystem, root = fsspec.core.url_to_fs(url)
    assert not [name for name in filesystem.ls(root, detail=False) if name.endswith(".tmp")]


WRITER = """
import sys
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from test_replay import make_sample

buffer = ReplayBuffer(sys.argv[1])
number = 0
while True:
    samples = [make_sample(f"{sys.argv[2]}-{number}-{i}", length=200, top=32) for i in range(4)]
    buffer.append(samples)
    print(*(sample.request_id for sample in samples), flush=True)
    number += 1
"""


@pytest.mark.slow
def test_kill_in_mid_write_loses_no_committed_shard(tmp_path):
    repository = Path(__file__).parents[4]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(repository), str(Path(__file__).parent)])}
    committed: list[str] = []
    for life in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(life)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert writer.stdout is not None
        committed += writer.stdout.readline().split()
        time.sleep(random.Random(life).uniform(0.5, 3.0))  # time for merges, too
        os.kill(writer.pid, signal.SIGKILL)
        committed += writer.stdout.read().rpartition("\n")[0].split()  # a line may be cut off
        writer.wait()
        buffer = ReplayBuffer(str(tmp_path))
        found = request_ids(buffer)
        assert set(committed) <= set(found)
        assert len(found) == len(set(found))
        assert len(found) % 4 == 0
        assert buffer.size().quarantined == 0
    assert len(committed) > 12


def test_newest_is_what_came_last_though_the_clock_ran_ahead_before(tmp_path, monkeypatch):
    buffer, ahead = ReplayBuffer(str(tmp_path)), time.time() + 40 * 86400
    with monkeypatch.context() as patch:
        patch.setattr("hotdraft.pipeline.replay.folder.time.time", lambda: ahead)
        buffer.append([make_sample("ahead")])
    for name in ("a", "b"):
        ReplayBuffer(str(tmp_path)).append([make_sample(name)])
    assert buffer.rows()["request_id"] == ["ahead", "a", "b"]
    (tmp_path / f"shard-{'9' * 20}-cafe.parquet").touch()
    buffer.append([make_sample("c")])
    assert buffer.rows()["request_id"] == ["ahead", "a", "b", "c"], "behind a file that is none of ours as well"


def test_what_is_too_old_goes_and_a_fair_sample_of_it_stays(tmp_path, monkeypatch):
    buffer = ReplayBuffer(str(tmp_path), max_age_seconds=3600, reservoir_requests=2)
    now = time.time()
    for age, domain in ((9000, "old"), (8000, "old"), (7000, "other"), (60, "new")):
        monkeypatch.setattr("hotdraft.pipeline.replay.folder.time.time", lambda at=now - age: at)
        buffer.append([make_sample(f"{domain}-{age}-{index}", domain=domain) for index in range(3)])
    monkeypatch.undo()
    buffer.append([make_sample("last")])
    assert len(buffer.shards()) == 2
    ids = request_ids(buffer)
    assert ids[-4:] == ["new-60-0", "new-60-1", "new-60-2", "last"]
    assert sorted(name.split("-")[0] for name in ids[:-4]) == ["old", "old", "other", "other"]
    by_domain = buffer.stats().by_domain
    assert {domain: its.requests for domain, its in by_domain.items()} == {
        "old": 2,
        "other": 2,
        "new": 3,
        "math": 1,
    }
    assert ReplayBuffer(str(tmp_path)).stats().requests == 8, "any reader sees the reservoir"


def test_size_reads_each_footer_once_and_forgets_deleted_shards(tmp_path, monkeypatch):
    buffer = ReplayBuffer(str(tmp_path))
    assert buffer.size() == ReplaySize(0, 0, 0)
    first = buffer.append([make_sample("a"), make_sample("b")])
    buffer.append([make_sample("c")])
    size = buffer.size()
    assert (size.shards, size.requests) == (2, 3)
    assert size.bytes == sum(path.stat().st_size for path in tmp_path.glob("*.parquet"))
    footers = []

    def opened(name: str, *arguments: object) -> Shard:
        footers.append(name)
        return open_shard(name, *arguments)

    monkeypatch.setattr("hotdraft.pipeline.replay.folder.open_shard", opened)
    assert buffer.size() == size
    (tmp_path / first).unlink()
    last = buffer.append([make_sample("d")])
    assert buffer.size().requests == 2
    assert footers == [last]
