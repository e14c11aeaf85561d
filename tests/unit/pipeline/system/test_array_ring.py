import errno
from pathlib import Path

import numpy as np
import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.system.array_ring import ArrayRing, served_states


def array(number: int) -> np.ndarray:
    return np.full((5, 2), number, np.uint16)


def get(ring: ArrayRing, key: bytes) -> np.ndarray | None:
    return ring.get(key, (5, 2), np.uint16)


def test_the_oldest_make_room_and_what_came_again_stays(tmp_path: Path) -> None:
    writer, reader = (ArrayRing(tmp_path / "ring", 3 * array(0).nbytes) for _ in range(2))
    assert get(reader, b"one") is None
    for name in (b"one", b"two", b"one", b"three"):
        writer.put(name, array(name[0]))
    assert get(reader, b"two") is not None
    writer.put(b"four", array(4))
    assert get(reader, b"two") is None
    assert np.array_equal(get(reader, b"one"), array(b"one"[0]))
    assert sorted(path.suffix for path in (tmp_path / "ring").iterdir()) == [".bin"] * 3
    writer.clear()
    assert get(reader, b"one") is None


@pytest.mark.parametrize("spoiled", [b"", b"PK\x03\x04 and more", 3 * array(1).tobytes()])
def test_what_is_of_another_size_is_not_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoiled: bytes
) -> None:
    ring = ArrayRing(tmp_path / "ring", 1000)
    ring.put(b"one", array(1))
    (path,) = (tmp_path / "ring").iterdir()
    path.write_bytes(spoiled)
    assert get(ring, b"one") is None
    path.unlink()
    path.mkdir()
    assert get(ring, b"one") is None
    assert "not 20" in caplog.text
    assert "cannot be read" in caplog.text


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = ArrayRing(tmp_path / "ring", 1000)
    ring.put(b"one", array(1))

    def full_disk(path: Path, data: bytes) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with pytest.raises(OSError, match="no space"):
        ring.put(b"two", array(2))
    assert [path.suffix for path in (tmp_path / "ring").iterdir()] == [".bin"]
    assert np.array_equal(get(ring, b"one"), array(1))


def test_a_server_may_be_told_to_leave_nothing(tmp_path: Path) -> None:
    assert served_states(HotdraftConfig(target="t", run_dir=tmp_path)) is not None
    assert served_states(HotdraftConfig(target="t", run_dir=tmp_path, recorder={"states_mb": 0})) is None
