"""The file that says what served last."""

from pathlib import Path

import pytest

from hotdraft.serving.updates.last_served import LastServed, LastServedFile


def test_the_last_word_is_read_by_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    LastServedFile(Path("run")).write(3, Path("run/adapters/a"))
    assert LastServedFile(tmp_path / "run").read() == LastServed(version=3, folder=tmp_path / "run/adapters/a")
    LastServedFile(tmp_path / "run").write(0, None)
    assert LastServedFile(tmp_path / "run").read() is None


@pytest.mark.parametrize("content", [b"", b"[]", b'{"version": 0, "folder": "a"}', b'{"version": 1}', b"\xff"])
def test_a_broken_file_says_nothing_but_in_the_log(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "last_served.json").write_bytes(content)
    assert LastServedFile(tmp_path).read() is None
    assert "does not say which adapter served last" in caplog.text


def test_a_folder_that_cannot_be_written_is_not_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "run").write_text("a file")
    LastServedFile(tmp_path / "run").write(1, tmp_path)
    assert "cannot be written" in caplog.text
