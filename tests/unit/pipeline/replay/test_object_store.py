"""What object stores do that folders do not, and what it means when they do not answer."""

import uuid

import fsspec
import pytest

from hotdraft.pipeline.config.section import ConfigError
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.replay import folder
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.replay.shard import Read, Shard
from hotdraft.pipeline.replay.upkeep import FAN_IN
from tests.unit.pipeline.replay.test_replay import make_sample, request_ids


class ClientError(Exception):
    """As the client of an object store raises where none answers: no OSError."""


@pytest.fixture
def buffer(monkeypatch: pytest.MonkeyPatch) -> ReplayBuffer:
    """Where nothing begins with a prefix, an object store has no such folder."""
    made = ReplayBuffer(f"memory://replay-{uuid.uuid4().hex}")
    listed = type(made._folder.fs).ls

    def ls(self: fsspec.AbstractFileSystem, path: str, **options: object) -> list:
        if found := listed(self, path, **options):
            return found
        raise FileNotFoundError(path)

    monkeypatch.setattr(type(made._folder.fs), "ls", ls)
    return made


def test_a_bucket_that_nothing_was_written_to_is_an_empty_buffer(buffer: ReplayBuffer) -> None:
    assert buffer.size().requests == len(buffer.rows()) == len(buffer.news(set())[0]) == 0
    buffer.append([make_sample("a")])
    assert request_ids(buffer) == ["a"]


def test_a_store_that_lets_nobody_in_is_told_in_one_line(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise ClientError("Unable to locate credentials")

    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "makedirs", refuse)
    config = HotdraftConfig(target="t", run_dir=tmp_path, replay={"url": "memory://bucket"})
    with pytest.raises(ConfigError, match="memory://bucket cannot be opened: ClientError: Unable to locate cred"):
        ReplayBuffer.of(config)


def test_a_server_and_a_trainer_begin_while_the_store_is_away_and_a_folder_of_this_machine_is_not(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise ClientError("SlowDown")

    config = HotdraftConfig(target="t", run_dir=tmp_path, replay={"url": f"memory://{uuid.uuid4().hex}"})
    filesystem = fsspec.get_filesystem_class("memory")
    with monkeypatch.context() as patch:
        for name in ("makedirs", "ls", "open"):
            patch.setattr(filesystem, name, away)
        buffer = ReplayBuffer.of(config, may_be_away=True)
        with pytest.raises(OSError, match="SlowDown"):
            buffer.append([make_sample("lost")])
    buffer.append([make_sample("a")])
    assert request_ids(buffer) == ["a"]
    (tmp_path / "file").touch()
    local = config.model_copy(update={"replay": config.replay.model_copy(update={"url": str(tmp_path / "file")})})
    with pytest.raises(ConfigError, match="cannot be opened"):
        ReplayBuffer.of(local, may_be_away=True)


def test_a_bucket_that_was_never_made_is_made_with_the_first_shard(buffer: ReplayBuffer, monkeypatch) -> None:
    filesystem, buckets = type(buffer._folder.fs), set[str]()
    put = filesystem.pipe_file

    def put_in_bucket(self: fsspec.AbstractFileSystem, path: str, *arguments: object, **options: object) -> None:
        if path.rpartition("/")[0] not in buckets:
            raise FileNotFoundError("NoSuchBucket")
        put(self, path, *arguments, **options)

    monkeypatch.setattr(filesystem, "pipe_file", put_in_bucket)
    monkeypatch.setattr(filesystem, "makedirs", lambda _, path, **__: buckets.add(path))
    buffer.append([make_sample("a")])
    assert request_ids(buffer) == ["a"]


def test_the_newest_requests_are_read_from_the_newest_shards_alone(buffer: ReplayBuffer, monkeypatch) -> None:
    monkeypatch.setattr("hotdraft.pipeline.replay.folder.OPENED_AT_ONCE", 4)
    monkeypatch.setattr(buffer._upkeep, "run", lambda *_: None)
    for number in range(20):
        buffer.append([make_sample(f"{number}a"), make_sample(f"{number}b")])
    opened = _opened(monkeypatch)
    newest = buffer.newest(5)
    assert newest["request_id"] == ["17b", "18a", "18b", "19a", "19b"]
    assert newest.table([0, 4])["request_id"].to_pylist() == ["17b", "19b"]
    assert opened == buffer.shards()[:-4:-1]
    assert buffer.newest(100)["request_id"] == buffer.rows()["request_id"]


def test_the_ends_of_many_shards_are_asked_for_together(buffer: ReplayBuffer, monkeypatch) -> None:
    """Where a store is some milliseconds away, one after the other takes minutes."""
    for number in range(20):
        buffer.append([make_sample(f"{number}")])
    filesystem, asked = type(buffer._folder.fs), list[int]()
    together = filesystem.cat_ranges

    def cat_ranges(
        self: fsspec.AbstractFileSystem, paths: list[str], *arguments: object, **options: object
    ) -> list:
        asked.append(len(paths))
        return together(self, paths, *arguments, **options)

    monkeypatch.setattr(filesystem, "cat_ranges", cat_ranges)
    fresh = ReplayBuffer("memory://" + buffer._folder.root)
    assert len(fresh.rows()) == 20
    assert asked == [20]


def test_a_shard_is_recorded_and_the_buffer_kept_in_order_for_few_listings(
    buffer: ReplayBuffer, monkeypatch
) -> None:
    """Each is of all shards, a thousand at a time, and paid for."""
    buffer.append([make_sample("first")])
    filesystem, listed = type(buffer._folder.fs), list[str]()
    ls = filesystem.ls

    def listing(self: fsspec.AbstractFileSystem, path: str, **options: object) -> list:
        listed.append(path)
        return ls(self, path, **options)

    monkeypatch.setattr(filesystem, "ls", listing)
    buffer.append([make_sample("a")])
    root = buffer._folder.root
    assert listed == [root, root, f"{root}/quarantine"]


def test_shards_stay_open_while_others_go(buffer: ReplayBuffer, monkeypatch) -> None:
    """As a server merges that records beside a trainer that begins: each listing would cost minutes anew."""
    names = [buffer.append([make_sample(one)]) for one in "abc"]
    opened = _opened(monkeypatch, gone=names[1])
    assert ReplayBuffer("memory://" + buffer._folder.root).rows()["request_id"] == ["a", "c"]
    assert [opened.count(name) for name in names] == [1, 5, 1]


def _opened(patch: pytest.MonkeyPatch, gone: str | None = None) -> list[str]:
    """Names of shards, as they are opened from here on."""
    opens, opened = folder.open_shard, list[str]()

    def open_shard(name: str, size: int, read: Read) -> Shard:
        opened.append(name)
        if name == gone:
            raise FileNotFoundError(name)
        return opens(name, size, read)

    patch.setattr(folder, "open_shard", open_shard)
    return opened


class Remembering:
    """A client that lists a folder once, until it is told to forget, as Azure's does."""

    def __init__(self, filesystem: fsspec.AbstractFileSystem) -> None:
        self._filesystem = filesystem
        self._listings: dict[str, list] = {}

    def __getattr__(self, name: str) -> object:
        return getattr(self._filesystem, name)

    def ls(self, path: str, **options: object) -> list:
        if path not in self._listings:
            self._listings[path] = self._filesystem.ls(path, **options)
        return self._listings[path]

    def invalidate_cache(self, path: str | None = None) -> None:
        self._listings.clear()


def test_what_others_wrote_is_seen_though_the_client_remembers_listings(buffer: ReplayBuffer, monkeypatch) -> None:
    reader = ReplayBuffer("memory://" + buffer._folder.root)
    monkeypatch.setattr(reader._folder, "fs", Remembering(reader._folder.fs))
    for count, name in enumerate("ab", 1):
        buffer._folder.set_aside(buffer.append([make_sample("broken")]), "it is broken")
        buffer.append([make_sample(name)])
        assert reader.rows()["request_id"] == [*"ab"[:count]]
        assert reader.size().quarantined == count


def test_a_folder_that_is_gone_is_no_empty_buffer(tmp_path) -> None:
    buffer = ReplayBuffer(str(tmp_path / "replay"))
    (tmp_path / "replay").rmdir()
    with pytest.raises(FileNotFoundError):
        buffer.rows()


def test_a_store_that_cannot_be_reached_is_away_as_a_disk_is(buffer: ReplayBuffer, monkeypatch) -> None:
    buffer.append([make_sample("a")])
    name = buffer.append([make_sample("b")])
    filesystem = type(buffer._folder.fs)

    def away(*_: object, **__: object) -> None:
        raise ClientError("could not connect")

    fresh = ReplayBuffer("memory://" + buffer._folder.root)
    with monkeypatch.context() as patch:
        patch.setattr(filesystem, "cat_file", away)
        assert len(fresh.rows()) == 0
        assert fresh.errors == 2
    [shard] = [place[0] for place in buffer._counted() if place[0].name == name]
    with monkeypatch.context() as patch:
        patch.setattr(filesystem, "cat_file", away)
        with pytest.raises(OSError, match="cannot be read for now"):
            buffer.fetch(shard, [0])
        patch.setattr(filesystem, "ls", away)
        with pytest.raises(OSError, match="ClientError: could not connect"):
            buffer.rows()
        patch.setattr(filesystem, "open", away)
        with pytest.raises(OSError, match="ClientError: could not connect"):
            buffer.append([make_sample("lost")])
    assert request_ids(fresh) == ["a", "b"]
    errors = buffer.errors
    with monkeypatch.context() as patch:
        patch.setattr(filesystem, "rm_file", away)
        buffer._folder.remove(name)
        patch.setattr(filesystem, "ls", away)
        with pytest.raises(OSError, match="ClientError: could not connect"):
            buffer._folder.quarantined()
    assert buffer.errors == errors + 1, "of the deletion"
    with monkeypatch.context() as patch:
        patch.setattr(filesystem, "mv", away)
        buffer._folder.set_aside(name, "it is broken")
    assert buffer._folder.quarantined() == {name: 0}, "passed over where it is"


def test_who_may_put_but_not_delete_records_everything_once_and_merges_once(
    buffer: ReplayBuffer, monkeypatch
) -> None:
    def forbid(*_: object, **__: object) -> None:
        raise PermissionError("AccessDenied: s3:DeleteObject")

    filesystem = type(buffer._folder.fs)
    with monkeypatch.context() as patch:
        for name in ("rm", "rm_file"):
            patch.setattr(filesystem, name, forbid)
        for number in range(FAN_IN + 4):
            buffer.append([make_sample(f"{number}")])
    assert buffer.errors, "what is left lying is counted"
    fresh, recorded = ReplayBuffer("memory://" + buffer._folder.root), [f"{n}" for n in range(FAN_IN + 4)]
    assert request_ids(fresh) == fresh.newest(1000)["request_id"] == recorded
    assert len(buffer.shards()) == FAN_IN + 4 + 1
    buffer.append([make_sample("allowed again")])
    assert len(buffer.shards()) < FAN_IN


def test_what_was_put_though_the_answer_got_lost_is_not_recorded_twice(buffer: ReplayBuffer, monkeypatch) -> None:
    filesystem = type(buffer._folder.fs)
    put, lost = filesystem.pipe_file, [ClientError("connection reset")]

    def put_and_lose(self: fsspec.AbstractFileSystem, *arguments: object, **options: object) -> None:
        put(self, *arguments, **options)
        if lost:
            raise lost.pop()

    monkeypatch.setattr(filesystem, "pipe_file", put_and_lose)
    buffer.append([make_sample("a")])
    assert not lost
    assert request_ids(buffer) == ["a"]


def test_a_listing_that_fails_once_loses_no_samples(buffer: ReplayBuffer, monkeypatch) -> None:
    filesystem = type(buffer._folder.fs)
    listed, lost = filesystem.ls, [ClientError("connection reset")]

    def list_or_lose(self: fsspec.AbstractFileSystem, path: str, **options: object) -> list:
        if lost:
            raise lost.pop()
        return listed(self, path, **options)

    monkeypatch.setattr(filesystem, "ls", list_or_lose)
    buffer.append([make_sample("a")])
    assert not lost
    assert request_ids(buffer) == ["a"]
