"""How large the replay buffer is, looked up now and then, so that nobody waits for its store to ask."""

from hotdraft.pipeline.replay.buffer import ReplayBuffer, ReplaySize
from hotdraft.pipeline.system.poller import Poller


class ReplayWatch:
    """Looks every `interval` seconds in a thread of its own. `buffer` must be for this watch alone.

    What goes wrong for the `writer`, another buffer of the same place, counts among `errors`.
    """

    def __init__(self, buffer: ReplayBuffer, interval: float = 10.0, writer: ReplayBuffer | None = None) -> None:
        self.size = ReplaySize(shards=0, bytes=0, requests=0)
        """As last seen; it stays while the store is away."""
        self._buffer = buffer
        self._writer = writer
        failing = "the replay buffer's size cannot be had"
        self._poller = Poller(self._look, interval, name="replay-watch", failing=failing, at_once=True)

    @property
    def errors(self) -> int:
        """Times that the buffer could not be read, or its folder not be kept in order, for now."""
        return self._poller.failures + self._buffer.errors + (self._writer.errors if self._writer else 0)

    def start(self) -> None:
        self._poller.start()

    def stop(self) -> None:
        self._poller.stop()

    def _look(self) -> None:
        self.size = self._buffer.size()
