"""Something asked again and again, in a thread that outlives whatever comes of it."""

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 10.0
"""For a poll that hangs, as on a disk or store that does not answer, when the process ends."""


class Poller:
    """Calls `poll` every `seconds` from `start` to `stop`.

    A poll that fails is counted, and told of as `failing` if the one before it did not fail.
    """

    def __init__(
        self, poll: Callable[[], object], seconds: float, *, name: str, failing: str, at_once: bool = False
    ) -> None:
        """`at_once`: the first poll does not wait."""
        self.failures = 0
        self._poll = poll
        self._seconds = seconds
        self._failing = failing
        self._at_once = at_once
        self._has_failed = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Nothing happens if it was not started."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(PATIENCE_SECONDS)

    def _run(self) -> None:
        if self._at_once:
            self.turn()
        while not self._stopping.wait(self._seconds):
            self.turn()

    def turn(self) -> None:
        """A poll in the caller's thread, before `start` has begun others."""
        try:
            self._poll()
        except Exception as error:
            self.failures += 1
            if not self._has_failed:  # where a store is away its words are enough
                logger.warning("%s: %r", self._failing, error, exc_info=not isinstance(error, OSError))
            self._has_failed = True
        else:
            self._has_failed = False
