"""Hands finished requests to the replay buffer without ever making the engine wait."""

import logging
import queue
import random
import threading
import time
from dataclasses import replace

from hotdraft.pipeline.config.serving import RecorderConfig
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.pipeline.store.domains import DomainNames

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
"""For a store that does not answer, when the server ends."""


class Recorder:
    """Writes samples as shards in a thread of its own; what does not fit its queue is dropped and counted.

    Clients choose domains, and whatever reads the buffer keeps something by domain: their names are bounded here.
    """

    def __init__(self, buffer: ReplayBuffer, config: RecorderConfig) -> None:
        self.recorded = 0
        """Samples in committed shards."""
        self.dropped = 0
        """Samples lost to a full queue or a failed write."""
        self.problem: str | None = None
        """Why the last shard could not be written; None once one could."""
        self._buffer = buffer
        self._config = config
        self._domains = DomainNames()
        self._queue: queue.Queue[ReplaySample | None] = queue.Queue(config.queue_size)
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def wants_next(self) -> bool:
        """Whether a request that begins is one of those to record."""
        return random.random() < self._config.sample_rate

    def record(self, sample: ReplaySample) -> None:
        """Never blocks."""
        try:
            self._queue.put_nowait(sample)
        except queue.Full:
            self.dropped += 1

    def close(self, patience: float = CLOSE_SECONDS) -> None:
        """Write what is queued, for `patience` seconds at most, then end; what is left is dropped and counted."""
        deadline = time.monotonic() + patience
        try:
            self._queue.put(None, timeout=patience)
            self._thread.join(max(0.0, deadline - time.monotonic()))
        except queue.Full:
            pass
        if self._thread.is_alive():
            self.dropped += (left := self._queue.qsize())
            logger.error("the replay buffer did not answer in %g s: some %d samples are lost", patience, left)

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
            self._buffer.append([replace(one, domain=self._domains.name(one.domain)) for one in samples])
        except Exception as error:  # noqa: BLE001 -- each object store's client has errors of its own
            self.dropped += len(samples)
            self.problem = f"{type(error).__name__}: {error}"
            logger.warning("lost %d samples, the replay buffer cannot be written: %s", len(samples), self.problem)
        else:
            self.recorded += len(samples)
            self.problem = None
