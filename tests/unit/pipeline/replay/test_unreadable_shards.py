"""Shards that cannot be read for a while, as where a disk fails or a store is away: none is lost or new again."""

import errno
import gc
import sys

import pytest

from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.replay.counted import is_reservoir
from hotdraft.pipeline.replay.upkeep import FAN_IN
from tests.unit.pipeline.replay.test_replay import make_sample, request_ids


def _fail_for(buffer: ReplayBuffer, patch: pytest.MonkeyPatch, fails) -> None:
    reader = buffer._folder.reader

    def away(start: int, end: int) -> bytes:
        raise ConnectionError("try again")

    patch.setattr(buffer._folder, "reader", lambda name: away if fails(name) else reader(name))


def test_a_reservoir_that_cannot_be_read_for_a_while_is_not_written_anew_without_what_it_holds(
    tmp_path, monkeypatch
) -> None:
    buffer = ReplayBuffer(str(tmp_path), max_age_seconds=1e-9, reservoir_requests=100)
    for number in range(10):
        buffer.append([make_sample(f"{number}")])
    kept = {f"{number}" for number in range(9)}
    assert kept < set(request_ids(buffer))
    with monkeypatch.context() as patch:
        _fail_for(buffer, patch, is_reservoir)
        buffer.append([make_sample("meanwhile")])
    assert kept <= set(request_ids(ReplayBuffer(str(tmp_path)))), "what came to go meanwhile went, and no more"
    buffer.append([make_sample("later")])
    assert kept | {"meanwhile"} <= set(request_ids(buffer))


def test_what_comes_back_once_a_shard_can_be_read_again_is_not_new(tmp_path, monkeypatch) -> None:
    buffer, reader = ReplayBuffer(str(tmp_path)), ReplayBuffer(str(tmp_path))
    names = [buffer.append([make_sample(one)]) for one in "ab"]
    _, known = reader.news(set())
    reader._shards.clear()
    with monkeypatch.context() as patch:
        _fail_for(reader, patch, lambda name: name == names[0])
        came, known = reader.news(known)
        assert len(came) == 0
    buffer.append([make_sample("c")])
    came, _ = reader.news(known)
    assert came["request_id"].to_pylist() == ["c"]


def _spoil_rows(buffer: ReplayBuffer, patch: pytest.MonkeyPatch, name: str, size: int) -> None:
    """As a bad sector does: what comes after them can be read."""
    reader = buffer._folder.reader

    def read(start: int, end: int) -> bytes:
        if start == 0 and end < size:
            raise OSError(errno.EIO, "input/output error")
        return reader(name)(start, end)

    patch.setattr(buffer._folder, "reader", lambda one: read if one == name else reader(one))


def test_a_shard_of_which_rows_cannot_be_read_keeps_no_others_from_being_merged(
    tmp_path, monkeypatch, caplog
) -> None:
    buffer, unraised = ReplayBuffer(str(tmp_path)), []
    monkeypatch.setattr(sys, "unraisablehook", unraised.append)
    names = [buffer.append([make_sample("0")])]
    with monkeypatch.context() as patch:
        _spoil_rows(buffer, patch, names[0], (tmp_path / names[0]).stat().st_size)
        names += [buffer.append([make_sample(f"{number}")]) for number in range(1, FAN_IN + 3)]
    left = buffer.shards()
    assert names[0] in left
    assert names[1] not in left, "it was merged"
    assert caplog.text.count("input/output error") == 1
    assert request_ids(buffer) == [f"{number}" for number in range(len(names))]
    gc.collect()
    assert not unraised, "of the merge that was given up"


def test_a_shard_of_which_rows_could_not_be_read_is_merged_later(tmp_path, monkeypatch) -> None:
    buffer = ReplayBuffer(str(tmp_path))
    names = [buffer.append([make_sample(f"{number}")]) for number in range(FAN_IN - 1)]
    with monkeypatch.context() as patch:
        _spoil_rows(buffer, patch, names[-1], (tmp_path / names[-1]).stat().st_size)
        names += [buffer.append([make_sample(one)]) for one in "ab"]
    assert len(buffer.shards()) == len(names)
    monkeypatch.setattr("hotdraft.pipeline.replay.upkeep.UNREADABLE_SECONDS", 0)
    buffer.append([make_sample("c")])
    assert len(buffer.shards()) == 1
