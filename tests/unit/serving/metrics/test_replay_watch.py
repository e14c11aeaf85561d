"""The watch of the replay buffer's size: it follows, and outlives a store that is away."""

import time
from collections.abc import Callable

import pytest

from hotdraft.pipeline.replay.buffer import ReplaySize
from hotdraft.serving.metrics.replay_watch import ReplayWatch


class Buffer:
    def __init__(self) -> None:
        self.requests = 5
        self.is_down = False
        self.looks = 0
        self.errors = 0

    def size(self) -> ReplaySize:
        self.looks += 1
        if self.is_down:
            raise OSError("the store is away")
        return ReplaySize(1, 100, self.requests)


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def test_the_size_is_followed_and_kept_while_the_store_is_away(caplog: pytest.LogCaptureFixture) -> None:
    buffer = Buffer()
    watch = ReplayWatch(buffer, interval=0.01)
    assert watch.size.requests == 0
    watch.start()
    try:
        eventually(lambda: watch.size.requests == 5)
        buffer.is_down = True
        looks = buffer.looks
        eventually(lambda: buffer.looks > looks + 3)
        assert watch.size.requests == 5
        assert watch.errors > 3
        buffer.requests, buffer.is_down = 8, False
        eventually(lambda: watch.size.requests == 8)
    finally:
        watch.stop()
    assert sum("cannot be had" in record.message for record in caplog.records) == 1
