"""Who looks at a lock does not take it."""

import errno
import fcntl
import os
import resource
from pathlib import Path
from threading import Timer

import pytest

from hotdraft.pipeline.system.run_lock import has_run, is_held, is_locked, run_lock


def test_who_looks_for_a_trainer_keeps_none_from_beginning(tmp_path: Path) -> None:
    path = tmp_path / "trainer.lock"
    with run_lock(tmp_path, "trainer"):
        pass
    with path.open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        Timer(0.03, looking.close).start()
        with run_lock(tmp_path, "trainer"):
            assert is_held(tmp_path, "trainer")


def test_a_full_disk_keeps_nobody_from_holding_it(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with run_lock(tmp_path, "server"):
            assert is_held(tmp_path, "server")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with run_lock(tmp_path, "server"):
        assert (tmp_path / "server.lock").read_text() == str(os.getpid())


def test_a_file_system_without_locks_is_told_with_what_lies_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: object, kind: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = tmp_path / "server.lock"
    with pytest.raises(OSError, match=f"run_dir is to lie on .*{path}"), run_lock(tmp_path, "server"):
        pass
    with pytest.raises(OSError, match=f"run_dir is to lie on .*{path}"):
        is_locked(path)


def test_a_folder_of_another_user_is_not_one_in_which_nothing_has_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not has_run(tmp_path / "absent")
    (tmp_path / "jobs").mkdir()
    assert has_run(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # which root has everywhere
    with pytest.raises(PermissionError, match=str(tmp_path)):
        has_run(tmp_path)
