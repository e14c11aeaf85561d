"""Hands finished requests to the replay buffer without ever making the engine wait."""

import logging
import queue
import threading
import time

from pipeline.config import RecorderConfig
from pipeline.records import ReplaySample
from pipeline.replay import ReplayBuffer

logger = logging.getLogger(__name__)


class Recorder:
    """Writes samples as shards in a thread of its own; what does not fit its queue is dropped and counted."""

    def __init__(self, buffer: ReplayBuffer, config: RecorderConfig) -> None:
        self.recorded = 0
        """Samples in committed shards."""
        self.dropped = 0
        """Samples lost to a full queue or a failed write."""
        self._buffer = buffer
        self._config = config
        self._queue: queue.Queue[ReplaySample | None] = queue.Queue(config.queue_size)
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def record(self, sample: ReplaySample) -> None:
        """Never blocks."""
        try:
            self._queue.put_nowait(sample)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Write what is queued, then end."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        closing = False
        while not closing:
            samples = [self._queue.get()]
            deadline = time.monotonic() + self._config.flush_seconds
            while samples[-1] is not None and len(samples) < self._config.shard_requests:
                try:
                    samples.append(self._queue.get(timeout=max(0.0, deadline - time.monotonic())))
                except queue.Empty:
                    break
            closing = samples[-1] is None
            self._write([sample for sample in samples if sample is not None])

    def _write(self, samples: list[ReplaySample]) -> None:
        if not samples:
            return
        try:
            self._buffer.append(samples)
        except (OSError, ValueError) as error:  # ValueError: a sample that Arrow cannot hold
            self.dropped += len(samples)
            logger.warning("lost %d samples, the replay buffer cannot be written: %s", len(samples), error)
        else:
            self.recorded += len(samples)
