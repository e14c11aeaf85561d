"""What following the champion asks of an engine that drafts."""

from pathlib import Path
from typing import Protocol, TypeVar

from hotdraft.serving.messages.events import SwapEvent, SwapReason

Staged = TypeVar("Staged")


class NotNowError(RuntimeError):
    """Nothing can be swapped at present, whatever version it is; the message says why, for anybody to read."""


class Swapper(Protocol[Staged]):
    @property
    def live_version(self) -> int: ...

    def stage(self, version: int, folder: Path | None) -> Staged:
        """`version`, of the adapter in `folder`, read and checked while another serves; 0 needs no folder.

        Raises `AdapterError` naming what is wrong, and `NotNowError`.
        """
        ...

    def swap(self, staged: Staged, reason: SwapReason) -> SwapEvent:
        """Serve it. Raises `SwapError` if the draft does not compute what it should: the one before serves on;
        and `NotNowError`."""
        ...
