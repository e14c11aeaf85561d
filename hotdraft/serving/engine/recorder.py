"""Hands finished requests to the replay buffer without ever making the engine wait."""

import logging
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple, Self

import numpy as np

from hotdraft.pipeline.config.serving import RecorderConfig
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import weights_id
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.pipeline.store.domains import DomainNames
from hotdraft.pipeline.system.array_ring import ArrayRing
from hotdraft.serving.engine.failures import Failures

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
"""For a store that does not answer, when the server ends."""

WAITING_BYTES = 2**28
"""Of samples that wait to be written, beyond which none is taken; as much again of their states."""


class Finished(NamedTuple):
    sample: ReplaySample
    states: np.ndarray | None

    @property
    def nbytes(self) -> np.ndarray:
        """Of the sample, and of its states."""
        return np.array([self.sample.nbytes, 0 if self.states is None else self.states.nbytes])


class ServedModels(NamedTuple):
    """Which models a server's samples are of, as `weights_id` tells them; empty where that is not known."""

    target_id: str = ""
    draft_id: str = ""

    @classmethod
    def of(cls, config: HotdraftConfig) -> Self:
        return cls(weights_id(config.target), weights_id(config.draft))


UNKNOWN_MODELS = ServedModels()


class Recorder:
    """Writes samples as shards in a thread of its own; what does not fit its queue is dropped and counted.

    Clients choose domains, and whatever reads the buffer keeps something by domain: their names are bounded here.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        config: RecorderConfig,
        states: ArrayRing | None = None,
        *,
        models: ServedModels = UNKNOWN_MODELS,
    ) -> None:
        """`states` is where a trainer looks for what the target's layers made of a request."""
        self.recorded = 0
        """Samples in committed shards."""
        self.dropped = 0
        """Samples lost because too many waited, or to a failed write."""
        self.left_out: Counter[str] = Counter()
        """Requests that nothing was to be recorded of, by what they asked for."""
        self.failures = Failures()
        """Where what is lost beside samples is counted; an engine's has its own."""
        self.problem: str | None = None
        """Why the last shard could not be written; None once one could."""
        self._buffer = buffer
        self._config = config
        self._domains = DomainNames()
        self._states = states
        self._models = models
        self._queue: queue.Queue[Finished | None] = queue.Queue(config.queue_size)
        self._taken = self._done = np.zeros(2, np.int64)
        """Bytes of samples and of states since the start, each written by one thread: the rest waits."""
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def wants_next(self) -> bool:
        """Whether a request that begins is one of those to record."""
        return random.random() < self._config.sample_rate

    def record(self, sample: ReplaySample, states: np.ndarray | None = None) -> None:
        """Never blocks. `states` [T, S] are of its tokens, those that the target has read at least."""
        too_many, too_many_states = self._taken - self._done >= WAITING_BYTES
        if states is not None and too_many_states:
            self._lost_states(BufferError(f"{WAITING_BYTES >> 20} MB wait to be written"))
            states = None
        finished = Finished(sample, states)
        with suppress(queue.Full):
            if not too_many:
                self._queue.put_nowait(finished)
                self._taken = self._taken + finished.nbytes
                return
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
            finished = [self._queue.get()]
            deadline = time.monotonic() + self._config.flush_seconds
            waiting, most = self._queue.qsize(), self._config.shard_requests
            if 2 * waiting >= self._config.queue_size:  # else what is asked next would be dropped
                most = max(most, 1 + waiting)
            while finished[-1] is not None and len(finished) < most:
                try:
                    finished.append(self._queue.get(timeout=max(0.0, deadline - time.monotonic())))
                except queue.Empty:
                    break
            closing = finished[-1] is None
            ended = [one for one in finished if one is not None]
            self._keep_states(ended)  # before anybody sees the samples
            self._write([one.sample for one in ended])
            self._done = self._done + sum(one.nbytes for one in ended)
        if self._states is not None:
            self._states.clear()

    def _keep_states(self, ended: Sequence[Finished]) -> None:
        try:
            for sample, states in ended:
                if states is not None and self._states is not None:
                    tokens = sample.read_tokens
                    self._states.put(tokens.tobytes(), states[: len(tokens)])
        except Exception as error:  # noqa: BLE001 -- the samples themselves are still to be written
            self._lost_states(error)

    def _clear_states(self) -> None:
        """They can be made again, what the buffer would delete on a full disk cannot."""
        assert self._states is not None
        self._states.clear()
        self._lost_states(OSError("the disk is full"))

    def _lost_states(self, error: Exception) -> None:
        self.failures.add("states", error, "a trainer has to make them again")

    def _named(self, sample: ReplaySample) -> ReplaySample:
        domain = self._domains.name(sample.domain)
        return replace(sample, domain=domain, **self._models._asdict())

    def _write(self, samples: list[ReplaySample]) -> None:
        if not samples:
            return
        try:
            named = [self._named(one) for one in samples]
            self._buffer.append(named, self._clear_states if self._states is not None else None)
        except Exception as error:  # noqa: BLE001 -- each object store's client has errors of its own
            self.dropped += len(samples)
            self.problem = f"{type(error).__name__}: {error}"
            logger.warning("lost %d samples, the replay buffer cannot be written: %s", len(samples), self.problem)
        else:
            self.recorded += len(samples)
            self.problem = None
