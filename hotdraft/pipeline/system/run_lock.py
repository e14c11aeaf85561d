"""One server and one trainer to a run directory: both keep there what another would overwrite."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal


class RunInUseError(ValueError):
    """Another process holds the run directory."""


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
def run_lock(run_dir: Path, role: Literal["server", "trainer"]) -> Iterator[RunLock]:
    """Hold `<run_dir>/<role>.lock`, which ends with this process however that ends.

    Raises `RunInUseError` naming the process that holds it, and OSError where the folder cannot be written.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    path = run_dir / f"{role}.lock"
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise RunInUseError(
                f"another {role}, process {holder}, works in {run_dir}: end it, or give this one its own run_dir"
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield RunLock(path, file)
