"""Small files and shards are on the disk before they have their name, and their name soon after."""

import errno
import json
import os
from pathlib import Path

import pytest

from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.system.json_file import rewrite_json, write_json
from tests.unit.pipeline.replay.test_replay import make_sample


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        found.append("folder" if Path(f"/proc/self/fd/{descriptor}").resolve().is_dir() else "file")
        fsync(descriptor)

    def renamed(source: object, to: object) -> None:
        found.append("rename")
        replace(source, to)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    return found


def test_a_file_appears_once_it_is_on_the_disk(tmp_path, calls):
    write_json(tmp_path / "new" / "a.json", {"a": 1})
    assert json.loads((tmp_path / "new" / "a.json").read_text()) == {"a": 1}
    assert calls == ["file", "rename", "folder"]


def test_what_is_written_in_a_files_own_place_takes_no_more_than_that(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"a": "long enough"})
    rewrite_json(path, {"b": 1})
    assert json.loads(path.read_text()) == {"b": 1}
    with pytest.raises(OSError, match="No space"):
        rewrite_json(path, {"c": "x" * 100_000})
    assert json.loads(path.read_text()) == {"b": 1}


def test_a_shard_appears_once_it_is_on_the_disk(tmp_path, calls):
    ReplayBuffer(str(tmp_path)).append([make_sample("a")])
    assert calls == ["file", "rename", "folder"]


def test_where_folders_cannot_be_synced_a_shard_is_written_once(tmp_path, monkeypatch):
    """As on some network file systems."""

    def refuse(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").resolve().is_dir():
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)
    buffer = ReplayBuffer(tmp_path)
    buffer.append([make_sample("a")])
    assert list(buffer.rows()["request_id"]) == ["a"]
