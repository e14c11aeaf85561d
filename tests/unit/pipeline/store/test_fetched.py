"""Adapters of a remote store are fetched once, and only those that are in use stay."""

import os
from pathlib import Path

import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.store import fetched
from hotdraft.pipeline.store.fetched import KEPT, FetchedAdapters


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sources that the store was asked for."""
    found: list[str] = []

    def download(*, artifact_uri: str, tracking_uri: str, dst_path: str) -> str:
        found.append(artifact_uri)
        folder = Path(dst_path) / "adapter"
        folder.mkdir()
        (folder / "of").write_text(artifact_uri)
        return str(folder)

    monkeypatch.setattr(fetched, "download_artifacts", download)
    return found


def test_those_that_were_not_used_for_longest_are_forgotten(tmp_path: Path, asked: list[str]) -> None:
    adapters = FetchedAdapters(HotdraftConfig(target="t", run_dir=tmp_path))
    served = adapters.folder("served")
    for number in range(2 * KEPT):
        newest = adapters.folder(f"{number}")
        for folder in (tmp_path / "adapters").iterdir():  # as if that had been a while ago
            os.utime(folder, (folder.stat().st_atime, folder.stat().st_mtime - 60))
        assert adapters.folder("served") == served
    assert len(list((tmp_path / "adapters").iterdir())) == KEPT
    assert (served / "of").read_text() == "served"
    assert adapters.folder(f"{2 * KEPT - 1}") == newest
    assert len(asked) == len(set(asked)) == 1 + 2 * KEPT
    adapters.folder("0")
    assert asked[-1] == "0", "it is fetched again"


def test_what_was_just_fetched_stays_though_the_clock_ran_ahead_before(tmp_path: Path, asked: list[str]) -> None:
    adapters = FetchedAdapters(HotdraftConfig(target="t", run_dir=tmp_path))
    for number in range(KEPT):
        folder = adapters.folder(f"{number}")
        os.utime(folder, (folder.stat().st_atime, folder.stat().st_mtime + 86400))
    assert (adapters.folder("champion") / "of").read_text() == "champion"
    assert len(list((tmp_path / "adapters").iterdir())) == KEPT


def test_what_is_discarded_is_fetched_again_and_what_was_not_fetched_stays(
    tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    adapters = FetchedAdapters(HotdraftConfig(target="t", run_dir=Path("run")))
    spoiled, other = adapters.folder("spoiled"), adapters.folder("other")
    assert adapters.discard(spoiled.absolute()), "it was a copy: the store may give a sound one"
    assert other.is_dir()
    assert (adapters.folder("spoiled") / "of").is_file()
    assert asked == ["spoiled", "other", "spoiled"]
    theirs = tmp_path / "artifacts" / spoiled.name
    theirs.mkdir(parents=True)
    assert not adapters.discard(theirs), "a local store's own files"
    assert theirs.is_dir()
