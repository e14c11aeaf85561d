"""Serving the champion, or what can be served in its place.

A version may be fit for other servers and not for this one: of another draft, with files that are spoiled or
cannot be had here, too large for the memory that is left. It is then unusable *here*, which this server says
of itself: in its log, its metrics, `/health` and so `hotdraft doctor`. It serves on with what it has, and never
moves the alias by it: that is for what was served to decide, or a person.
"""

import logging
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from hotdraft.pipeline.config.origins import without_password
from hotdraft.pipeline.models.adapter_folder import AdapterError
from hotdraft.pipeline.store.adapter_version import ROLLED_BACK
from hotdraft.pipeline.store.connection import STORE_ONLY_ERRORS, StoreError
from hotdraft.pipeline.store.errors import RegistryError
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.serving.messages.events import SwapReason
from hotdraft.serving.updates.hot_swap import SwapError
from hotdraft.serving.updates.last_served import LastServedFile
from hotdraft.serving.updates.swapper import NotNowError, Swapper

logger = logging.getLogger(__name__)

LONGEST_RETRY_SECONDS = 600.0
MAX_STAND_INS = 16
"""Earlier champions that are tried where the present one is unusable."""

Files = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Unusable:
    """A version that this server cannot serve, and when that may change.

    What is wrong with its files stays wrong until they change, but for a copy, which is fetched again; whatever
    else it was may pass.
    """

    why: str
    """For anybody to read."""
    tries: int
    retry_at: float | None
    """On the monotonic clock; None is when what is in `folder` changes."""
    folder: Path = Path()
    files: Files = ()

    @property
    def is_due(self) -> bool:
        """Whether it is worth another try."""
        if self.retry_at is not None:
            return time.monotonic() >= self.retry_at
        return files_in(self.folder) != self.files


class ChampionFollower:
    """Brings the live draft to the champion, from one thread alone.

    A version that turns out unusable is tried again when its files change, or after a growing pause if the cause
    may pass by itself, and anew once another champion was in between.
    """

    def __init__(self, swapper: Swapper[Any], registry: AdapterRegistry, last_served: LastServedFile) -> None:
        self._swapper = swapper
        self._registry = registry
        self._last_served = last_served
        self.unusable: dict[int, Unusable] = {}
        """By version; put in place as a whole, as other threads read it."""
        self.failures = 0
        """Attempts to swap that failed."""
        self._stand_ins: list[tuple[int, Path | None]] | None = None
        self.champion: int | None = None
        """As the registry named it last; None until it was first asked."""

    def follow(self, reason: SwapReason) -> None:
        """Swap if the champion changed. Raises what shows that the registry is away, `NotNowError` and
        `CancelledError`."""
        champion, live = self._registry.champion(), self._swapper.live_version
        if champion != self.champion:
            self.champion, self._stand_ins = champion, None
            self.unusable = {}
        if champion == live:
            if not champion:
                self._last_served.write(0, None)
            return
        if taken_back := live > 0 and self._was_taken_back(live):
            reason = "rollback"
        if not self._serve(champion, None, reason) and (live <= 0 or taken_back):
            self._stand_in(reason)

    def take_up_last_served(self) -> None:
        """Serve what served last, while nobody can say which version should."""
        last = self._last_served.read()
        if last is not None:
            logger.warning("taking up version %d, which served last, until the registry can be asked", last.version)
            self._serve(last.version, last.folder, "startup")

    def _stand_in(self, reason: SwapReason) -> None:
        """Serve the last good version rather than the draft as it is, and that rather than what nobody should."""
        if self._stand_ins is None:
            self._stand_ins = list(islice(self._find_stand_ins(), MAX_STAND_INS))
        live = self._swapper.live_version  # if it is one of them, it was taken back since
        self._stand_ins = [place for place in self._stand_ins if place[0] != live]
        for version, folder in self._stand_ins:
            if self._serve(version, folder, reason):
                return
        if live:
            self._serve(0, None, reason)

    def _find_stand_ins(self) -> Iterator[tuple[int, Path | None]]:
        """Versions to serve in place of the champion, with their folders if known, the best first."""
        assert self.champion is not None
        last = self._last_served.read()
        if last is not None and last.version != self.champion and not self._was_taken_back(last.version):
            yield last.version, last.folder
        for version in self._registry.champions_before(self.champion):
            yield version, None

    def _was_taken_back(self, version: int) -> bool:
        try:
            return self._registry.version(version).status == ROLLED_BACK
        except RegistryError:  # deleted
            return True

    def _serve(self, version: int, folder: Path | None, reason: SwapReason) -> bool:
        """Whether `version` serves now, from `folder` if that is given."""
        known = self.unusable.get(version)
        if known is not None and not known.is_due:
            return False
        try:
            if version and folder is None:
                folder = self._registry.download(version)
            event = self._swapper.swap(self._swapper.stage(version, folder), reason)
        except (CancelledError, NotNowError, *STORE_ONLY_ERRORS):  # the engine ends, or the registry is away
            raise
        except Exception as error:  # noqa: BLE001 -- whatever a version brings about is its own affair
            self._mark(version, folder, error)
            return False
        self.unusable = {other: mark for other, mark in self.unusable.items() if other != version}
        self._last_served.write(version, folder)
        logger.info("draft version %d serves, after a stall of %.1f ms (%s)",
                    version, 1000 * event.stall_seconds, event.reason)  # fmt: skip
        return True

    def _mark(self, version: int, folder: Path | None, error: Exception) -> None:
        known = self.unusable.get(version)
        why, tries = _in_words(error), known.tries + 1 if known else 1
        if known is None or known.why != why:
            said = without_password(f"{type(error).__name__}: {error}")
            live = self._swapper.live_version
            serves = f"version {live}" if live >= 0 else "nobody knows what"
            logger.error("version %d is unusable here, %s serves on: %s", version, serves, said)
        self.failures += 1
        is_spoiled = isinstance(error, (AdapterError, SwapError))
        if is_spoiled and folder is not None and not self._registry.fetched.discard(folder):
            mark = Unusable(why, tries, None, folder, files_in(folder))
        else:
            mark = Unusable(why, tries, time.monotonic() + min(2**tries, LONGEST_RETRY_SECONDS))
        self.unusable = {**self.unusable, version: mark}


def files_in(folder: Path) -> Files:
    """Names, sizes and times of change: equal while nobody touched them."""
    try:
        entries = [(path.name, path.lstat()) for path in folder.iterdir()]
    except OSError:
        return ()
    return tuple(sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in entries))


def _in_words(error: Exception) -> str:
    """What anybody may read of it: no addresses, no paths."""
    match error:
        case AdapterError() | SwapError():
            return " ".join(str(error).split())[:300]
        case RegistryError() | StoreError():
            return "its files cannot be had"
        case MemoryError() | torch.OutOfMemoryError():
            return "out of memory"
        case _:
            return type(error).__name__
