"""The folder of a replay buffer: files appear whole and stay on the disk, and what is none of ours is set aside.

Where files cannot be renamed, but copied and deleted, as in object stores, one that is put appears whole in itself:
who may put but not delete can record there.

`quarantine/` holds what could not be read, under the time and name that it had. What cannot be moved there is
remembered and passed over.
"""

import io
import logging
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import IO

import fsspec
from filelock import FileLock, Timeout

from hotdraft.pipeline.replay.shard import TAIL_BYTES, Read, Shard, ShardError, open_shard
from hotdraft.pipeline.system.json_file import sync_folder

logger = logging.getLogger(__name__)

QUARANTINE = "quarantine"
SUFFIX, UNFINISHED = ".parquet", ".tmp"
OPENED_AT_ONCE = 64
"""Shards in a store that is some milliseconds away: their ends take 4 MB."""


def shard_stem(seconds: float) -> str:
    """The start of the name of a shard written at Unix time `seconds`: names sort by time."""
    return f"shard-{int(seconds * 1e9):020d}"


def stem_of(name: str) -> str:
    """The start of `name`; a name without a time sorts first."""
    found = re.match(r"shard-\d{20}", name)
    return found[0] if found else shard_stem(0)


def nanoseconds(name: str) -> int:
    return int(stem_of(name).removeprefix("shard-"))


def stem_behind(names: Iterable[str]) -> str:
    """That of a shard written now, behind all `names` also where a clock ran ahead: newest is what came last."""
    newest = max(map(nanoseconds, names), default=0)
    return max(shard_stem(time.time()), f"shard-{min(newest + 1, 10**20 - 1):020d}")


def _read_with_end(read: Read, at: int, tail: bytes | Exception, start: int, end: int) -> bytes:
    """As `read` does; what is asked of the file's end, `at` and behind it, is in `tail`, or what came instead."""
    if start != at:
        return read(start, end)
    if isinstance(tail, Exception):
        raise tail
    return tail[: end - start]


class ShardFolder:
    """Any fsspec URL. One thread at a time. Raises OSError where it cannot be made or reached.

    One that is not local is asked for nothing until it is used: it may be away.
    """

    def __init__(self, url: str) -> None:
        self.fs, self.root = fsspec.core.url_to_fs(url)
        self.is_local = "file" in (self.fs.protocol if isinstance(self.fs.protocol, tuple) else (self.fs.protocol,))
        self._renames = type(self.fs).mv is not fsspec.AbstractFileSystem.mv
        if self.is_local:
            self.make()
        self.errors = 0
        """Times that a file could not be read for now, or the folder not be kept in order."""
        self._passed_over: dict[str, int] = {}
        """Bytes by name."""
        self._failing: set[str] = set()

    def make(self) -> None:
        with self._answering():
            self.fs.makedirs(self.root, exist_ok=True)

    def files(self, *suffixes: str) -> dict[str, int]:
        """Bytes of each shard, or of what has one of `suffixes`, in the order of names; a shard that is no file is
        set aside."""
        try:
            entries = self._entries(self.root)
        except FileNotFoundError:  # an object store has no folders: one without files is not there
            if self.is_local:
                raise
            entries = []
        by_name = {entry["name"].rsplit("/", 1)[-1]: entry for entry in entries}
        still = (name for name in self._passed_over if name in by_name)
        self._passed_over = {name: by_name[name]["size"] or 0 for name in still}
        found = {}
        for name, entry in by_name.items():
            if not name.endswith(suffixes or SUFFIX) or name in self._passed_over:
                continue
            if entry["type"] == "file" or (self.is_local and os.path.isfile(entry["name"])):
                found[name] = entry["size"]
            elif name.endswith(SUFFIX):
                self.set_aside(name, "it is no file" if entry["type"] == "other" else f"it is a {entry['type']}")
        return found

    def _entries(self, path: str) -> list[dict]:
        """Of a folder now, in the order of names: clients of object stores may remember them for good."""
        with self._answering():
            self.fs.invalidate_cache()
            return sorted(self.fs.ls(path, detail=True), key=lambda entry: entry["name"])

    def open(self, name: str, size: int) -> Shard | None:
        """The shard; None if it was set aside or cannot be read for now. Raises `FileNotFoundError`."""
        return self._open(name, size, self.reader(name))

    def _open(self, name: str, size: int, read: Read) -> Shard | None:
        with self.reading(name):
            return open_shard(name, size, read)
        return None

    def open_all(self, sizes: Mapping[str, int]) -> Iterator[tuple[str, Shard | None]]:
        """What `open` gives of each, in order, but of those that are gone; a store is asked for many at once."""
        files = [*sizes.items()]
        for start in range(0, len(files), OPENED_AT_ONCE):
            some = files[start : start + OPENED_AT_ONCE]
            readers = [self.reader(name) for name, _ in some] if self.is_local else self._ends(some)
            for (name, size), read in zip(some, readers, strict=True):
                with suppress(FileNotFoundError):
                    yield name, self._open(name, size, read)

    def _ends(self, files: Sequence[tuple[str, int]]) -> list[Read]:
        """Readers of `files`, by name and size, which have read their ends already."""
        paths = [self.path(name) for name, _ in files]
        starts = [max(0, size - TAIL_BYTES) for _, size in files]
        with self._answering():
            ends = self.fs.cat_ranges(paths, starts, [size for _, size in files], on_error="return")
        return [
            partial(_read_with_end, self.reader(name), start, end)
            for (name, _), start, end in zip(files, starts, ends, strict=True)
        ]

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Raises OSError where a store cannot be reached: clients of object stores raise what they like then."""
        try:
            yield
        except Exception as error:
            if self.is_local or isinstance(error, (OSError, ShardError)):
                raise
            raise OSError(f"{type(error).__name__}: {error}") from error

    @contextmanager
    def reading(self, name: str) -> Iterator[None]:
        """Sets `name` aside for a `ShardError`; counts that it cannot be read for now, and says so once."""
        try:
            with self._answering():
                yield
        except FileNotFoundError:
            raise
        except ShardError as error:
            self.set_aside(name, str(error))
        except PermissionError as error:
            if self.is_local:  # an object store says so of everything once its keys are old
                self.set_aside(name, f"it may not be read: {error}")
            else:
                self.note_failure(name, error)
        except (OSError, MemoryError) as error:
            self.note_failure(name, error)
        else:
            self.note_success(name)

    def reader(self, name: str) -> Read:
        path = self.path(name)
        return lambda start, end: self.fs.cat_file(path, start=start, end=end)

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def write(self, stem: str, fill: Callable[[IO[bytes]], int], suffix: str = SUFFIX) -> str:
        """Give what `fill` writes the name `<stem>.<the CRC that it gives><suffix>`; it appears as a whole.

        `fill` may be asked twice, in a folder that is yet to be made.
        """
        write = self._write if self._renames else self._put
        with self._answering():
            try:
                return write(stem, fill, suffix)
            except FileNotFoundError:
                if self.is_local:
                    raise
                self.make()  # nobody has written there yet
                return write(stem, fill, suffix)

    def _put(self, stem: str, fill: Callable[[IO[bytes]], int], suffix: str) -> str:
        held = io.BytesIO()
        name = f"{stem}.{fill(held):08x}{suffix}"
        self.fs.pipe_file(self.path(name), held.getvalue())
        return name

    def _write(self, stem: str, fill: Callable[[IO[bytes]], int], suffix: str) -> str:
        # by the time that it is written, whatever time `stem` is of: an old one has lost its writer
        temporary = self.path(f".{shard_stem(time.time())}-{uuid.uuid4().hex[:8]}{UNFINISHED}")
        try:
            with open(temporary, "wb") if self.is_local else self.fs.open(temporary, "wb") as file:
                crc = fill(file)
                file.flush()
                if self.is_local:
                    os.fsync(file.fileno())
            name = f"{stem}.{crc:08x}{suffix}"
            if self.is_local:
                os.replace(temporary, self.path(name))
                sync_folder(self.root)
            else:
                self.fs.mv(temporary, self.path(name))
        except BaseException:
            self.remove(temporary.rsplit("/", 1)[-1])
            raise
        return name

    def remove(self, name: str) -> None:
        with self._removing(name):
            self.fs.rm_file(self.path(name))

    @contextmanager
    def _removing(self, name: str) -> Iterator[None]:
        """Another server may have done so; that it cannot be done is counted, and said once."""
        try:
            with self._answering():
                yield
        except FileNotFoundError:
            pass
        except OSError as error:
            self.note_failure(name, error)

    def set_aside(self, name: str, why: str) -> None:
        """Move `name` into the quarantine, or pass it over from now on."""
        aside = f"{QUARANTINE}/{time.time_ns():020d}-{name}"
        try:
            with self._answering():
                self.fs.makedirs(self.path(QUARANTINE), exist_ok=True)
                if self.is_local:
                    os.rename(self.path(name), self.path(aside))
                else:
                    self.fs.mv(self.path(name), self.path(aside), recursive=True)
        except FileNotFoundError:  # another process was faster
            return
        except OSError as error:
            self._passed_over[name] = 0
            logger.warning("%s in the replay buffer is passed over: %s; it cannot be moved: %s", name, why, error)
        else:
            logger.warning("%s in the replay buffer was set aside as %s: %s", name, aside, why)

    def quarantined(self) -> dict[str, int]:
        """Bytes of each entry of the quarantine, the oldest first, and of what is passed over where it is."""
        try:
            entries = self._entries(self.path(QUARANTINE))
        except FileNotFoundError:
            entries = []
        sizes = {}
        for entry in entries:
            is_folder = entry["type"] == "directory"
            held = self.fs.find(entry["name"], detail=True).values() if is_folder else [entry]  # `du` follows links
            sizes[f"{QUARANTINE}/{entry['name'].rsplit('/', 1)[-1]}"] = sum(file["size"] or 0 for file in held)
        return sizes | self._passed_over

    def delete_quarantined(self, name: str) -> None:
        if name in self._passed_over:
            return
        with self._removing(name):
            if self.is_local and os.path.islink(self.path(name)):
                os.unlink(self.path(name))
            else:
                self.fs.rm(self.path(name), recursive=True)

    def note_failure(self, what: str, error: Exception) -> None:
        """Count it, and log the first in a row."""
        self.errors += 1
        if what not in self._failing:
            self._failing.add(what)
            logger.warning(
                "the replay buffer cannot be kept or read for now, %s: %s", what, str(error) or type(error).__name__
            )

    def note_success(self, what: str) -> None:
        """The next failure is the first in a row."""
        self._failing.discard(what)

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether no other process keeps the folder in order meanwhile; an object store has no way to tell."""
        lock = FileLock(self.path(".lock"), timeout=0) if self.is_local else None
        try:
            if lock is not None:
                lock.acquire()
        except Timeout:
            yield False
            return
        except NotImplementedError:  # a filesystem without locks is as an object store
            lock = None
        try:
            yield True
        finally:
            if lock is not None:
                lock.release()
