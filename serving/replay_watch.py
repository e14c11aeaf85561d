"""How large the replay buffer is, looked up now and then, so that nobody waits for its store to ask."""

import logging
import threading

from pipeline.replay import ReplayBuffer, ReplaySize

logger = logging.getLogger(__name__)


class ReplayWatch:
    """Looks every `interval` seconds in a thread of its own. `buffer` must be for this watch alone."""

    def __init__(self, buffer: ReplayBuffer, interval: float = 10.0) -> None:
        self.size = ReplaySize(shards=0, bytes=0, requests=0)
        """As last seen; it stays while the store is away."""
        self._buffer = buffer
        self._interval = interval
        self._store_is_down = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replay-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                self.size = self._buffer.size()
            except (OSError, ValueError) as error:  # ValueError: a file that is no shard
                if not self._store_is_down:
                    logger.warning("the replay buffer's size cannot be had: %s", error)
                self._store_is_down = True
            else:
                self._store_is_down = False
            if self._stopping.wait(self._interval):
                return
