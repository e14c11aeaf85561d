"""What is in a replay buffer's folder and is no shard: it is set aside, and all else goes on."""

import io
import logging
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from hotdraft.cli import app
from hotdraft.doctor.stores import examine_replay
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.trigger import DistillTrigger
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.replay.index import index_of
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.pipeline.replay.schema import SCHEMA, table_of
from hotdraft.pipeline.replay.shard import ShardError, open_shard, read_rows
from hotdraft.pipeline.replay.shard_writer import written
from tests.unit.pipeline.replay.test_replay import make_sample, request_ids

OLD = "shard-00000000000000000001-cafe1234.parquet"
NEW = "shard-00000000000000000001.cafe1234.parquet"
TABLE = table_of([make_sample("x", length=4), make_sample("y", length=4)])


def parquet(table: pa.Table) -> Callable[[Path], None]:
    return lambda folder: pq.write_table(table, folder / OLD)


def content(data: bytes, name: str = OLD) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(data)


def with_column(name: str, column: pa.Array) -> Callable[[Path], None]:
    return parquet(TABLE.set_column(TABLE.column_names.index(name), name, column))


def whole() -> bytes:
    file = io.BytesIO()
    pq.write_table(TABLE, file)
    return file.getvalue()


KINDS: dict[str, Callable[[Path], object]] = {
    "garbage": content(b"not parquet at all" * 100),
    "garbage under the name of a checked shard": content(b"not parquet at all" * 100, NEW),
    "empty": content(b""),
    "empty under the name of a checked shard": content(b"", NEW),
    "cut off": content(whole()[:-100]),
    "the footer alone": content(whole()[-200:]),
    "zeros": content(bytes(5000)),
    "an older shard with a checksum that is not its own": content(whole(), NEW),
    "text": content(b'{"request_id": "a"}\n', "export.parquet"),
    "another schema": parquet(pa.table({"text": ["a", "b"]})),
    "no columns": parquet(pa.table({})),
    "a column too many": parquet(TABLE.append_column("note", pa.array(["a", "b"]))),
    "a column too few": parquet(TABLE.drop_columns(["accepted"])),
    "a column twice": parquet(pa.table([*TABLE.columns, TABLE["domain"]], [*TABLE.column_names, "domain"])),
    "text that is none": with_column("domain", pa.array([b"a", b"\xff"]).view(pa.string())),
    "null strings": with_column("domain", pa.array(["a", None])),
    "null lists": with_column("prompt_ids", pa.array([[1], None], pa.list_(pa.int32()))),
    "null tokens": with_column("prompt_ids", pa.array([[1], [None]], pa.list_(pa.int32()))),
    "tokens as text": with_column("prompt_ids", pa.array([["1"], ["2"]])),
    "wide tokens": with_column("prompt_ids", pa.array([[1], [2]], pa.list_(pa.int64()))),
    "answers of other lengths": with_column("accepted", pa.array([[True], [False]])),
    "distributions of other lengths": with_column("target_top_ids", pa.array([[1], [2]], pa.list_(pa.int32()))),
    "a folder": lambda folder: (folder / OLD).mkdir(),
    "a folder with files": lambda folder: pq.write_to_dataset(TABLE, folder / OLD),
    "a folder with a dangling link": lambda folder: [
        (folder / OLD).mkdir(),
        (folder / OLD / "part").symlink_to(folder / "nowhere"),
    ],
    "a dangling link": lambda folder: (folder / OLD).symlink_to(folder / "nowhere"),
    "a link to itself": lambda folder: (folder / OLD).symlink_to(folder / OLD),
    "a pipe that nobody writes to": lambda folder: os.mkfifo(folder / OLD),
    "a broken reservoir": content(b"PAR1 and no more", "reservoir.parquet"),
    "a reservoir of something else": lambda folder: pq.write_table(
        pa.table({"a": [1]}), folder / "reservoir.parquet"
    ),
}


@pytest.fixture
def config(tmp_path: Path) -> HotdraftConfig:
    return HotdraftConfig(target="t", run_dir=tmp_path, distill={"trigger": {"min_new_requests": 1}})


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_set_aside_and_the_rows_of_good_shards_are_all_there(config, tmp_path, caplog, kind):
    folder = tmp_path / "replay"
    writer = ReplayBuffer.of(config)
    writer.append([make_sample("a"), make_sample("b")])
    trigger = DistillTrigger(config, ReplayBuffer.of(config))
    KINDS[kind](folder)
    for name in ("c", "d"):
        writer.append([make_sample(name)])
    reader = ReplayBuffer.of(config)
    with caplog.at_level(logging.WARNING):
        assert request_ids(reader) == reader.rows()["request_id"] == ["a", "b", "c", "d"]
        trigger.decide()
        assert reader.stats().requests == reader.size().requests == 4
    assert reader.size().quarantined == 1
    assert reader.stats().quarantined[0].startswith("quarantine/")
    assert sum("set aside" in record.message for record in caplog.records) == 1, "it is logged once"
    assert (writer.errors, reader.errors) == (0, 0)
    [named] = [found for found in examine_replay(config) if found.state == "warning"]
    [moved] = os.listdir(folder / "quarantine")
    assert moved in named.says
    assert len(list(folder.glob("*.parquet"))) == 3


def test_the_command_names_it(config, tmp_path):
    ReplayBuffer.of(config).append([make_sample("a")])
    KINDS["garbage"](tmp_path / "replay")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_defaults=True)))
    done = CliRunner().invoke(app, ["replay", "stats", "--config", str(path)], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert OLD in done.output
    assert "of the examined tokens" in done.output, "a request's own counts are larger"


def test_of_a_file_with_other_columns_the_end_alone_is_read():
    file = io.BytesIO()
    pq.write_table(pa.table({"noise": [os.urandom(1_000_000)]}), file)
    data, ranges = file.getvalue(), []

    def read(start: int, end: int) -> bytes:
        ranges.append(end - start)
        return data[start:end]

    with pytest.raises(ShardError, match="it has other columns than a shard"):
        open_shard(OLD, len(data), read)
    assert sum(ranges) < 100_000


def test_what_cannot_be_moved_is_passed_over_and_retention_goes_on(tmp_path, monkeypatch, caplog):
    buffer = ReplayBuffer(str(tmp_path), max_bytes=60_000)
    KINDS["garbage"](tmp_path)
    monkeypatch.setattr("hotdraft.pipeline.replay.folder.os.rename", _refuse)
    for number in range(30):
        buffer.append([make_sample(str(number), length=40)])
        buffer.rows()
    assert request_ids(buffer)[-1] == "29"
    assert buffer.size().quarantined == 1
    assert sum(path.stat().st_size for path in tmp_path.glob("*.parquet")) < 60_000
    assert sum("passed over" in record.message for record in caplog.records) == 1
    (passed_over,) = buffer.stats().quarantined
    (tmp_path / passed_over).unlink()
    assert buffer.size().quarantined == 0, "somebody deleted it"


def _refuse(*_: object) -> None:
    raise PermissionError("read-only")


def test_the_quarantine_is_inside_the_bound(tmp_path):
    buffer = ReplayBuffer(str(tmp_path), max_bytes=320_000)
    names = [f"shard-{number:020d}-cafe1234.parquet" for number in range(40)]
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(os.urandom(1000))
        buffer.append([make_sample(str(number))])
        buffer.rows()
    kept = sorted(path.name.split("-", 1)[1] for path in (tmp_path / "quarantine").iterdir())
    assert kept == names[-11:], "a share of the bound, and what came since"
    assert len(request_ids(buffer)) > 30
    for number in range(40, 80):
        buffer.append([make_sample(str(number), length=40)])
    assert 300_000 < sum(path.stat().st_size for path in tmp_path.rglob("*.parquet")) <= 320_000


def test_what_was_set_aside_and_cannot_be_deleted_keeps_no_shard_from_retention(tmp_path, monkeypatch, caplog):
    buffer = ReplayBuffer(str(tmp_path), max_bytes=60_000)
    (tmp_path / OLD).mkdir()
    (tmp_path / OLD / "part").write_bytes(bytes(3000))
    monkeypatch.setattr("fsspec.implementations.local.shutil.rmtree", _refuse)
    for number in range(30):
        buffer.append([make_sample(str(number), length=40)])
    assert request_ids(buffer)[-1] == "29"
    assert sum(path.stat().st_size for path in tmp_path.glob("*.parquet")) < 60_000
    assert buffer.errors
    assert sum("read-only" in record.message for record in caplog.records) == 1


def test_a_store_that_is_away_for_a_while_sets_nothing_aside(tmp_path, monkeypatch):
    buffer = ReplayBuffer(str(tmp_path))
    buffer.append([make_sample("a")])
    first, second = ReplayBuffer(str(tmp_path)), buffer.append([make_sample("b")])
    monkeypatch.setattr(
        first._folder, "reader", lambda name: _away if name == second else buffer._folder.reader(name)
    )
    assert first.rows()["request_id"] == ["a"]
    news, known = first.news(set())
    assert news["request_id"].to_pylist() == ["a"]
    assert first.errors == 2
    monkeypatch.undo()
    assert first.news(known)[0]["request_id"].to_pylist() == ["b"], "it is seen once the store is back"
    assert first.rows()["request_id"] == ["a", "b"]
    assert first.size().quarantined == 0


def _away(start: int, end: int) -> bytes:
    raise ConnectionError("try again")


@pytest.fixture(scope="module")
def shard() -> tuple[str, bytes]:
    file = io.BytesIO()
    crc = written(file, [(TABLE, index_of(TABLE))])
    return f"shard-0.{crc:08x}.parquet", file.getvalue()


def read_all(name: str, data: bytes) -> pa.Table:
    def read(start: int, end: int) -> bytes:
        return data[start:end]

    return pa.concat_tables(read_rows(open_shard(name, len(data), read), read))


def test_every_flipped_byte_is_found(shard):
    name, data = shard
    assert read_all(name, data) == TABLE
    generator = random.Random(0)
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= generator.randrange(1, 256)
        with pytest.raises(ShardError):
            read_all(name, bytes(flipped))


def test_a_shard_cut_off_at_any_byte_is_found(shard):
    name, data = shard
    for length in range(len(data)):
        with pytest.raises(ShardError):
            read_all(name, data[:length])


def test_an_older_shard_with_flipped_bytes_stops_nothing(tmp_path):
    """It has no checksum: what Parquet and the rows themselves do not show is read as it is."""
    data = whole()
    generator = random.Random(0)
    buffer = ReplayBuffer(str(tmp_path))
    buffer.append([make_sample("a")])
    for number in range(200):
        flipped = bytearray(data)
        flipped[generator.randrange(len(data))] ^= generator.randrange(1, 256)
        (tmp_path / f"shard-{number:020d}-cafe1234.parquet").write_bytes(flipped)
    rows = buffer.rows()
    assert rows["request_id"][-1] == "a"
    assert len(rows) < 401
    assert len(list(rows.read(range(len(rows))))) == len(rows)
    assert len(buffer.shards()) + buffer.size().quarantined == 201


def flip(path: Path) -> None:
    """A bit of the first row group."""
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)


def test_a_shard_that_breaks_after_its_footer_was_read_costs_its_rows_alone(tmp_path):
    buffer = ReplayBuffer(str(tmp_path))
    names = [buffer.append([make_sample(name)]) for name in "abc"]
    rows = buffer.rows()
    flip(tmp_path / names[1])
    assert [row["request_id"] for _, row in rows.read([2, 1, 0])] == ["c", "a"]
    assert request_ids(buffer) == ["a", "c"]
    assert buffer.size().quarantined == 1


def test_rows_of_a_shard_that_breaks_as_they_are_read_keep_their_place_in_the_index(tmp_path):
    buffer = ReplayBuffer(str(tmp_path))
    names = [buffer.append([make_sample(name, domain=name)]) for name in "abc"]
    rows = buffer.rows()
    flip(tmp_path / names[0])
    assert [row for row, _ in rows.read(range(3))] == [1, 2]
    assert rows.select([0, 2])["request_id"] == ["a", "c"]
    assert rows.domains[0].tolist() == [0, 1, 2]


def no_memory(*_: object, **__: object) -> None:
    raise pa.ArrowMemoryError


def test_a_checked_shard_that_memory_is_too_short_for_is_not_broken(tmp_path, monkeypatch, caplog):
    buffer = ReplayBuffer(str(tmp_path))
    buffer.append([make_sample("a")])
    rows = buffer.rows()
    with monkeypatch.context() as patch:
        patch.setattr(pq, "ParquetFile", no_memory)
        with pytest.raises(OSError, match="cannot be read for now"):
            rows.table([0])
        patch.setattr(pa.ipc, "open_stream", no_memory)
        assert len(ReplayBuffer(str(tmp_path)).rows()) == 0
    assert caplog.text.count("ArrowMemoryError") == 2
    assert rows.table([0])["request_id"].to_pylist() == request_ids(buffer) == ["a"]
    assert buffer.size().quarantined == 0


def test_an_older_shard_that_asks_for_more_memory_than_there_is_is_broken(tmp_path, monkeypatch):
    buffer = ReplayBuffer(str(tmp_path))
    content(whole())(tmp_path)
    monkeypatch.setattr(pq, "read_table", no_memory)
    assert len(buffer.rows()) == 0
    assert buffer.size().quarantined == 1


def test_records_that_contradict_themselves_are_committed_with_those_beside_them(tmp_path):
    odd: ReplaySample = replace(make_sample("odd"), accepted=np.ones(3, bool))
    buffer = ReplayBuffer(str(tmp_path))
    buffer.append([make_sample("a"), odd])
    assert request_ids(ReplayBuffer(str(tmp_path))) == ["a", "odd"]
    assert len(SCHEMA) == len(buffer.load().column_names)
