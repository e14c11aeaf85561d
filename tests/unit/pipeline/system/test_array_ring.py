from pathlib import Path

import numpy as np
import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.system.array_ring import ArrayRing, served_states


def array(number: int) -> np.ndarray:
    return np.full((5, 2), number, np.uint16)


def test_the_oldest_make_room_and_what_came_again_stays(tmp_path: Path) -> None:
    writer, reader = (ArrayRing(tmp_path / "ring", 3 * array(0).nbytes) for _ in range(2))
    assert reader.get(b"one") is None
    for name in (b"one", b"two", b"one", b"three"):
        writer.put(name, array(name[0]))
    assert reader.get(b"two") is not None
    writer.put(b"four", array(4))
    assert reader.get(b"two") is None
    assert np.array_equal(reader.get(b"one"), array(b"one"[0]))
    assert sorted(path.suffix for path in (tmp_path / "ring").iterdir()) == [".npy"] * 3
    writer.clear()
    assert reader.get(b"one") is None


def test_what_cannot_be_read_is_not_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ring = ArrayRing(tmp_path / "ring", 1000)
    ring.put(b"one", array(1))
    (path,) = (tmp_path / "ring").iterdir()
    path.write_bytes(path.read_bytes()[:60])
    assert ring.get(b"one") is None
    assert "cannot be read" in caplog.text


def test_a_server_may_be_told_to_leave_nothing(tmp_path: Path) -> None:
    assert served_states(HotdraftConfig(target="t", run_dir=tmp_path)) is not None
    assert served_states(HotdraftConfig(target="t", run_dir=tmp_path, recorder={"states_mb": 0})) is None
