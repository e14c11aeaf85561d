"""Arrays in a folder by key: one process puts them there, others look them up, and the oldest make room.

What cannot be read is not there: whoever asks for it can do without.
"""

import hashlib
import logging
import shutil
from pathlib import Path

import numpy as np

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.system.whole_file import appearing

logger = logging.getLogger(__name__)

STATES = "states"
"""Folder below the run directory."""


class ArrayRing:
    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._kept: dict[Path, int] = {}
        """How large each is that this process put there, the oldest first."""

    def clear(self) -> None:
        """Delete all there is, whoever put it there."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._kept.clear()

    def put(self, key: bytes, array: np.ndarray) -> None:
        """Raises `OSError` if it cannot be written."""
        path = self._path(key)
        with appearing(path) as partial:
            partial.write_bytes(array.tobytes())
        self._kept.pop(path, None)  # what comes again is new again
        self._kept[path] = array.nbytes
        while sum(self._kept.values()) > self._most_bytes:
            oldest = next(iter(self._kept))
            oldest.unlink(missing_ok=True)
            del self._kept[oldest]

    def get(self, key: bytes, shape: tuple[int, ...], dtype: type[np.generic]) -> np.ndarray | None:
        """A writable one; None where there is none of that size."""
        array = np.empty(shape, dtype)
        try:
            data = self._path(key).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.warning("%s cannot be read: %s", self._path(key), error)
            return None
        if len(data) != array.nbytes:
            logger.warning("%s has %d bytes, not %d", self._path(key), len(data), array.nbytes)
            return None
        array.reshape(-1).view(np.uint8)[:] = np.frombuffer(data, np.uint8)
        return array

    def _path(self, key: bytes) -> Path:
        return self._folder / f"{hashlib.sha256(key).hexdigest()}.bin"


def served_states(config: HotdraftConfig) -> ArrayRing | None:
    """Where a server leaves what its target's layers made of requests, for its trainer; None if it is not to."""
    megabytes = config.recorder.states_mb
    return ArrayRing(config.run_dir / STATES, megabytes * 10**6) if megabytes else None


def forget_served_states(config: HotdraftConfig) -> None:
    """Delete what a server left there that was killed: prompts can be guessed from it."""
    ArrayRing(config.run_dir / STATES, 0).clear()
