"""Who looks at a lock does not take it."""

import fcntl
from pathlib import Path
from threading import Timer

from hotdraft.pipeline.system.run_lock import is_held, run_lock


def test_who_looks_for_a_trainer_keeps_none_from_beginning(tmp_path: Path) -> None:
    path = tmp_path / "trainer.lock"
    with run_lock(tmp_path, "trainer"):
        pass
    with path.open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        Timer(0.03, looking.close).start()
        with run_lock(tmp_path, "trainer"):
            assert is_held(tmp_path, "trainer")
