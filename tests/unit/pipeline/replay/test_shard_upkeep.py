"""A replay buffer's folder in order: small shards are merged, and nothing is lost, doubled or without bound."""

import errno
import multiprocessing
import os
import time
import uuid
from pathlib import Path

import fsspec
import pyarrow.parquet as pq
import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.trigger import DistillTrigger
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.replay.schema import table_of
from hotdraft.pipeline.replay.shard import is_merged
from hotdraft.pipeline.replay.upkeep import ABANDONED_SECONDS, FAN_IN, Upkeep
from tests.unit.pipeline.replay.test_replay import make_sample, request_ids


def fill(buffer: ReplayBuffer, count: int, name: str = "r", **options: object) -> list[str]:
    ids = [f"{name}{number:05d}" for number in range(count)]
    for request_id in ids:
        buffer.append([make_sample(request_id, **options)])
    return ids


def older_shards(folder: Path, count: int) -> list[str]:
    """As a version without an index wrote them."""
    ids = [f"old{number:05d}" for number in range(count)]
    for number, request_id in enumerate(ids):
        name = f"shard-{number + 1:020d}-{uuid.uuid4().hex[:8]}.parquet"
        pq.write_table(table_of([make_sample(request_id)]), folder / name, compression="zstd")
    return ids


def test_small_shards_are_merged_in_order_and_every_row_stays(tmp_path):
    buffer = ReplayBuffer(str(tmp_path))
    ids = fill(buffer, 3 * FAN_IN + 5)
    assert request_ids(buffer) == ids
    assert any(map(is_merged, buffer.shards()))
    assert len(buffer.shards()) < 2 * FAN_IN
    assert request_ids(ReplayBuffer(str(tmp_path))) == ids
    assert [row["request_id"] for _, row in buffer.rows().read(range(len(ids)))] == ids


@pytest.mark.slow
def test_large_shards_are_not_written_again_for_the_sake_of_a_few_small_ones(tmp_path):
    buffer = ReplayBuffer(str(tmp_path), max_bytes=4_000_000)
    for part in range(6 * FAN_IN):
        buffer.append([make_sample(f"{part}-{index}", length=40) for index in range(4)])
        sizes = {name: path.stat().st_size for name in buffer.shards() if (path := tmp_path / name)}
        for name in filter(is_merged, sizes):
            assert sizes[name] <= 1.1 * 4_000_000 / 32
        assert len(sizes) < 3 * FAN_IN
    written: list[str] = [*filter(is_merged, sizes)]
    buffer.append([make_sample("one")])
    assert set(written) <= set(buffer.shards())


@pytest.mark.slow
def test_older_shards_are_read_at_once_and_merged_as_the_writer_goes_on(tmp_path):
    ids = older_shards(tmp_path, 200)
    assert ReplayBuffer(str(tmp_path)).rows()["request_id"] == ids
    buffer = ReplayBuffer(str(tmp_path))
    ids += fill(buffer, 12)
    assert len(buffer.shards()) <= 2 * FAN_IN
    assert request_ids(buffer) == ids


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_merge_that_was_killed_before_it_deleted_shows_no_row_twice(tmp_path, monkeypatch, kind):
    url = str(tmp_path) if kind == "file" else f"memory://replay-{uuid.uuid4().hex}"
    buffer = ReplayBuffer(url)
    with monkeypatch.context() as patch:
        patch.setattr(buffer._folder, "remove", lambda name: None)
        ids = fill(buffer, FAN_IN + 3)
    assert len(buffer.shards()) > FAN_IN + 3, "shards and what they were merged into"
    for reader in (buffer, ReplayBuffer(url)):
        assert request_ids(reader) == reader.rows()["request_id"]
        assert sorted(reader.rows()["request_id"]) == ids
        assert reader.size().requests == reader.stats().requests == len(ids)
    buffer.append([make_sample("s")])
    assert sorted(request_ids(ReplayBuffer(url))) == [*ids, "s"]
    assert len(buffer.shards()) < 10


def test_merges_of_two_servers_that_overlap_lose_and_double_nothing(monkeypatch):
    """An object store has no lock: both may merge, and neither the same shards."""
    url = f"memory://replay-{uuid.uuid4().hex}"
    one, other = ReplayBuffer(url), ReplayBuffer(url)
    with monkeypatch.context() as patch:
        patch.setattr(Upkeep, "_merge", lambda *_: None)
        ids = fill(one, FAN_IN + 1)
    with monkeypatch.context() as patch:
        patch.setattr("hotdraft.pipeline.replay.folder.ShardFolder.remove", lambda self, name: None)
        run = one._upkeep._worth_merging(one._folder.files())
        for buffer, part in ((one, run[:-1]), (other, run[1:])):
            patch.setattr(buffer._upkeep, "_worth_merging", lambda sizes, part=part: part)
            patch.setattr(buffer._upkeep, "_delete_leftovers", lambda _: None)
            buffer._upkeep.run()
    assert sum(map(is_merged, one.shards())) == 2
    assert sorted(request_ids(ReplayBuffer(url))) == ids
    for buffer in (one, other, one):
        buffer._upkeep.run()
        assert sorted(request_ids(ReplayBuffer(url))) == ids


def test_a_merge_that_another_server_is_at_is_not_abandoned_however_old_its_shards_are(monkeypatch):
    url = f"memory://replay-{uuid.uuid4().hex}"
    one, other = ReplayBuffer(url), ReplayBuffer(url)
    now, filesystem = time.time, type(one._folder.fs)
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now() - 2 * ABANDONED_SECONDS)
        ids = fill(one, FAN_IN - 1)
    move = filesystem.mv

    def mv(self: fsspec.AbstractFileSystem, source: str, target: str, **options: object) -> None:
        if is_merged(target):
            other._upkeep.run()
        move(self, source, target, **options)

    monkeypatch.setattr(other._upkeep, "_merge", lambda _: None)
    monkeypatch.setattr(filesystem, "mv", mv)
    ids += fill(one, 1, "s")
    assert one.errors == 0
    assert [*map(is_merged, one.shards())] == [True]
    assert request_ids(one) == ids


def test_rows_that_a_job_chose_are_found_where_they_were_merged_or_sampled_to(tmp_path):
    buffer = ReplayBuffer(str(tmp_path))
    ids = fill(buffer, 10)
    rows = buffer.rows().select([9, 0, 4])
    fill(buffer, 4 * FAN_IN, "more")
    assert [(row, values["request_id"]) for row, values in rows.read([2, 0, 1, 2])] == [
        (2, ids[4]), (0, ids[9]), (1, ids[0]), (2, ids[4]),
    ]  # fmt: skip
    keeping = ReplayBuffer(str(tmp_path), max_age_seconds=1e-9, reservoir_requests=1000)
    keeping.append([make_sample("last")])
    assert len(buffer.shards()) == 1
    assert [values["request_id"] for _, values in rows.read(range(3))] == [ids[9], ids[0], ids[4]]
    for path in tmp_path.glob("reservoir*"):
        path.unlink()
    assert list(rows.read(range(3))) == []


def test_a_trigger_counts_a_request_once_whatever_becomes_of_its_shard(tmp_path):
    config = HotdraftConfig(target="t", run_dir=tmp_path, replay={"held_out_fraction": 1e-9})
    buffer = ReplayBuffer.of(config)
    trigger = DistillTrigger(config, ReplayBuffer.of(config))
    total = 0
    for part in range(9):
        total += len(fill(buffer, FAN_IN // 4 + part, f"{part}-"))
        assert trigger.decide().new_requests == total
    assert any(map(is_merged, buffer.shards()))


@pytest.mark.slow
def test_the_reservoir_is_inside_the_bound_however_many_domains_clients_make_up(tmp_path):
    limit = 2_000_000
    buffer = ReplayBuffer(str(tmp_path), max_bytes=limit, reservoir_requests=64)
    for number in range(150):
        domains = [f"made-up-{number}-{index}" for index in range(15)] + ["real"]
        buffer.append([make_sample(f"{number}-{d}", length=60, domain=d) for d in domains])
        ids = buffer.rows()["request_id"]
        assert len(ids) == len(set(ids))
        total = sum(path.stat().st_size for path in tmp_path.rglob("*.parquet"))
        assert total <= limit
    sampled = sum(path.stat().st_size for path in tmp_path.glob("reservoir*"))
    assert 0 < sampled <= 1.5 * limit / 32
    assert len([*tmp_path.glob("reservoir*")]) == 1
    assert buffer.errors == 0


def test_a_crash_after_the_reservoir_took_its_sample_shows_no_row_twice(tmp_path, monkeypatch):
    buffer = ReplayBuffer(str(tmp_path), max_age_seconds=1e-9, reservoir_requests=4)
    with monkeypatch.context() as patch:
        patch.setattr(buffer._folder, "remove", lambda name: None)
        fill(buffer, 2)
        fill(buffer, 1, "last")
    assert len(buffer.shards()) == 3
    assert sorted(ReplayBuffer(str(tmp_path)).rows()["request_id"]) == ["last00000", "r00000", "r00001"]
    ReplayBuffer(str(tmp_path)).append([make_sample("after")])
    assert sorted(ReplayBuffer(str(tmp_path)).rows()["request_id"]) == ["after", "last00000", "r00000", "r00001"]
    assert len(buffer.shards()) == 2


def test_an_older_reservoir_is_read_and_taken_over(tmp_path):
    samples = [make_sample(f"past{index}", domain="past") for index in range(9)]
    pq.write_table(table_of(samples), tmp_path / "reservoir.parquet")
    buffer = ReplayBuffer(str(tmp_path), max_age_seconds=1e-9, reservoir_requests=4)
    assert len(request_ids(buffer)) == 9
    fill(buffer, 3)
    assert not (tmp_path / "reservoir.parquet").exists()
    assert {domain: its.requests for domain, its in buffer.stats().by_domain.items()} == {"past": 4, "math": 3}


class FullDisk:
    """`os.fsync` of a folder with room for so many bytes."""

    def __init__(self, folder: Path, room: int) -> None:
        self.folder, self.room = folder, room

    def fsync(self, descriptor: int) -> None:
        if sum(path.stat().st_size for path in self.folder.iterdir() if path.is_file()) > self.room:
            raise OSError(errno.ENOSPC, "no space left on device")


def test_a_full_disk_costs_the_oldest_shards_and_leaves_nothing_half_written(tmp_path, monkeypatch, caplog):
    buffer = ReplayBuffer(str(tmp_path), reservoir_requests=4)
    ids = fill(buffer, 12, length=40)
    disk = FullDisk(tmp_path, sum(path.stat().st_size for path in tmp_path.iterdir()) + 100)
    monkeypatch.setattr("hotdraft.pipeline.replay.folder.os.fsync", disk.fsync)
    ids += fill(buffer, 12, "new", length=40)
    left = request_ids(buffer)
    assert left == ids[-len(left) :]
    assert len(left) >= 4
    assert caplog.text.count("the disk is full: the oldest ") == 2
    disk.room = 0
    with pytest.raises(OSError, match="no space left"):
        buffer.append([make_sample("lost")])
    disk.room = 10**9
    others = fill(ReplayBuffer(str(tmp_path)), 3, "other")
    disk.room = 0
    with pytest.raises(OSError, match="no space left"):
        buffer.append([make_sample("lost")])
    assert request_ids(buffer)[-3:] == others, "what made no room is not done again until there is some"
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]


def test_a_full_disk_costs_what_can_be_made_again_before_any_shard(tmp_path, monkeypatch):
    buffer = ReplayBuffer(str(tmp_path))
    ids = fill(buffer, 5)
    disk = FullDisk(tmp_path, 0)
    monkeypatch.setattr("hotdraft.pipeline.replay.folder.os.fsync", disk.fsync)
    buffer.append([make_sample("new")], lambda: setattr(disk, "room", 10**9))
    assert request_ids(buffer) == [*ids, "new"]
    disk.room = sum(path.stat().st_size for path in tmp_path.iterdir())
    buffer.append([make_sample("newer")], lambda: None)
    assert request_ids(buffer) == ["new", "newer"]


def test_whatever_goes_wrong_with_the_folder_what_was_committed_is_not_called_lost(tmp_path, monkeypatch):
    class ClientError(Exception):
        """As an object store's client raises."""

    def fail(self: object) -> None:
        raise ClientError("slow down")

    buffer = ReplayBuffer(str(tmp_path))
    monkeypatch.setattr(Upkeep, "_merge", fail)
    ids = fill(buffer, 3)
    assert request_ids(buffer) == ids
    assert buffer.errors == 3


@pytest.mark.parametrize(("part", "what"), [("_merge", "its folder"), ("_verified", "its reservoir")])
def test_each_time_that_the_folder_can_no_more_be_kept_is_said_once(tmp_path, monkeypatch, caplog, part, what):
    def fail(*_: object) -> None:
        raise OSError("no more rights")

    buffer = ReplayBuffer(str(tmp_path), max_age_seconds=1e-9, reservoir_requests=100)
    for times in (1, 2):
        fill(buffer, 3, f"sound{times}")
        with monkeypatch.context() as patch:
            patch.setattr(Upkeep, part, fail)
            fill(buffer, 3, f"failing{times}")
        assert caplog.text.count(f"{what}: no more rights") == times


def _serve(url: str, server: int, count: int) -> None:
    buffer = ReplayBuffer(url, max_bytes=600_000, reservoir_requests=2)
    for number in range(count):
        buffer.append([make_sample(f"{server}-{number}-{index}", length=30) for index in range(2)])
    assert buffer.errors == 0, "nothing that the other deletes is an error"


@pytest.mark.slow
def test_servers_that_share_a_folder_delete_and_merge_without_losing_what_they_committed(tmp_path):
    context = multiprocessing.get_context("spawn")
    servers = [context.Process(target=_serve, args=(str(tmp_path), server, 120)) for server in range(2)]
    for server in servers:
        server.start()
    reader = ReplayBuffer(str(tmp_path))
    while any(server.is_alive() for server in servers):
        ids = reader.rows()["request_id"]
        assert len(ids) == len(set(ids))
    for server in servers:
        server.join()
    assert [server.exitcode for server in servers] == [0, 0]
    ids = request_ids(ReplayBuffer(str(tmp_path)))
    assert len(ids) == len(set(ids))
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.parquet")) <= 700_000
    assert {"0-119-1", "1-119-1"} & set(ids)


def test_nothing_of_a_merge_stays_unfinished_on_an_object_store():
    url = f"memory://replay-{uuid.uuid4().hex}"
    buffer = ReplayBuffer(url)
    ids = fill(buffer, 2 * FAN_IN)
    filesystem, root = fsspec.core.url_to_fs(url)
    assert request_ids(buffer) == ids
    assert not [name for name in filesystem.ls(root, detail=False) if name.endswith(".tmp")]


def test_a_merge_takes_no_more_rows_than_can_be_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("hotdraft.pipeline.replay.upkeep.MAX_MERGED_ROWS", 100)
    buffer = ReplayBuffer(str(tmp_path))
    ids = fill(buffer, 5 * FAN_IN)
    merged = {s.name: s.rows for place in buffer._counted() if is_merged((s := place[0]).name)}
    assert max(merged.values()) <= 100
    assert request_ids(buffer) == ids
