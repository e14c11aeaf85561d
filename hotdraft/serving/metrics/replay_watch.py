"""How large the replay buffer is, looked up now and then, so that nobody waits for its store to ask."""

import logging
import threading

from hotdraft.pipeline.replay.buffer import ReplayBuffer, ReplaySize

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 10.0
"""For a store that does not answer, when the server ends."""


class ReplayWatch:
    """Looks every `interval` seconds in a thread of its own. `buffer` must be for this watch alone.

    What goes wrong for the `writer`, another buffer of the same place, counts among `errors`.
    """

    def __init__(self, buffer: ReplayBuffer, interval: float = 10.0, writer: ReplayBuffer | None = None) -> None:
        self.size = ReplaySize(shards=0, bytes=0, requests=0)
        """As last seen; it stays while the store is away."""
        self._buffer = buffer
        self._interval = interval
        self._writer = writer
        self._failed_looks = 0
        self._store_is_down = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replay-watch", daemon=True)

    @property
    def errors(self) -> int:
        """Times that the buffer could not be read, or its folder not be kept in order, for now."""
        return self._failed_looks + self._buffer.errors + (self._writer.errors if self._writer else 0)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(PATIENCE_SECONDS)

    def _run(self) -> None:
        while True:
            try:
                self.size = self._buffer.size()
            except Exception as error:  # noqa: BLE001  # clients of object stores raise their own; the watch goes on
                self._failed_looks += 1
                if not self._store_is_down:
                    logger.warning("the replay buffer's size cannot be had: %s", error)
                self._store_is_down = True
            else:
                self._store_is_down = False
            if self._stopping.wait(self._interval):
                return
