"""One server and one trainer to a run directory: both keep there what another would overwrite."""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Literal

Role = Literal["server", "trainer"]
TRACES = ("server.lock", "trainer.lock", "jobs", "replay/*")
TRIES = 5
"""At a lock that `is_held` may have for a moment."""


class RunInUseError(ValueError):
    """A run directory that another process holds, or has used for what does not go with this."""


class RunLock:
    """What holds a run directory for this process."""

    def __init__(self, path: Path, file: IO[str]) -> None:
        self._path = path
        self._file = file

    @property
    def problem(self) -> str | None:
        """Of a folder that was moved, deleted or put in another's place under its process."""
        try:
            if os.path.samestat(os.fstat(self._file.fileno()), self._path.stat()):
                return None
        except OSError as error:
            return f"{self._path.parent} is not what it was when this process began: {error}"
        return f"{self._path.parent} is another folder than when this process began: restart it"


@contextmanager
def run_lock(run_dir: Path, role: Role) -> Iterator[RunLock]:
    """Hold `<run_dir>/<role>.lock`, which ends with this process however that ends.

    Raises `RunInUseError` naming the process that holds it, and OSError where the folder cannot be written.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    path = run_dir / f"{role}.lock"
    with path.open("a+") as file:
        if not any(_taken(file) for _ in range(TRIES)):
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise RunInUseError(
                f"another {role}, process {holder}, works in {run_dir}: end it, or give this one its own run_dir"
            )
        file.truncate(0)
        with suppress(OSError):  # it is the lock that holds: on a full disk this process is to serve all the same
            os.write(file.fileno(), str(os.getpid()).encode())
        yield RunLock(path, file)


def _taken(file: IO[str]) -> bool:
    taken = _had_at_once(file, fcntl.LOCK_EX)
    if not taken:
        time.sleep(0.02)
    return taken


def _had_at_once(file: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        says = f"{error.strerror}; run_dir is to lie on a file system that keeps locks"
        raise OSError(error.errno, says, str(file.name)) from error
    return True


def has_run(run_dir: Path) -> bool:
    """Whether anything that learns or serves ever ran in it; commands leave other files.

    Raises PermissionError where this user may not look.
    """
    if run_dir.exists() and not os.access(run_dir, os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(run_dir))
    return any(any(run_dir.glob(trace)) for trace in TRACES)


def is_held(run_dir: Path, role: Role) -> bool:
    """Whether a process of this machine holds `<run_dir>/<role>.lock`; not if that cannot be told."""
    try:
        return is_locked(run_dir / f"{role}.lock")
    except OSError:
        return False


def is_locked(path: Path) -> bool:
    """Whether a process of this machine holds it. Raises OSError where it cannot be looked at."""
    try:
        with path.open() as file:
            return not _had_at_once(file, fcntl.LOCK_SH)  # shared, as others may be looking too
    except FileNotFoundError:
        return False
