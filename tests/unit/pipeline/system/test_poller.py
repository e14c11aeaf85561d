"""A thread that polls: it outlives what it meets, says so once, and ends though a poll hangs."""

import threading
import time
from collections.abc import Callable

import pytest

from hotdraft.pipeline.system import poller as module
from hotdraft.pipeline.system.poller import Poller


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


@pytest.mark.parametrize(("error", "with_traceback"), [(KeyError("odd"), True), (OSError("away"), False)])
def test_a_failure_is_told_once_until_a_poll_succeeds_and_each_is_counted(
    error: Exception, with_traceback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes: list[Exception | None] = [error, error, None, error, error, None]

    def poll() -> None:
        if outcomes and (outcome := outcomes.pop(0)):
            raise outcome

    poller = Poller(poll, 0.001, name="test", failing="nothing is polled")
    poller.start()
    eventually(lambda: not outcomes)
    poller.stop()
    assert poller.failures == 4
    assert [record.message for record in caplog.records] == [f"nothing is polled: {error!r}"] * 2
    assert [bool(record.exc_info) for record in caplog.records] == [with_traceback] * 2


@pytest.mark.parametrize("at_once", [True, False])
def test_the_first_poll_waits_unless_it_is_wanted_at_once(at_once: bool) -> None:
    polled = threading.Event()
    poller = Poller(polled.set, 3600, name="test", failing="nothing is polled", at_once=at_once)
    poller.start()
    assert not at_once or polled.wait(10)
    poller.stop()
    assert polled.is_set() == at_once


def test_it_ends_though_a_poll_never_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.05)
    asked, ended = threading.Event(), threading.Event()

    def poll() -> None:
        asked.set()
        ended.wait(60)

    poller = Poller(poll, 3600, name="test", failing="nothing is polled", at_once=True)
    poller.start()
    assert asked.wait(10)
    stopping = threading.Thread(target=poller.stop, daemon=True)
    stopping.start()
    stopping.join(10)
    assert not stopping.is_alive()
    ended.set()


def test_one_that_was_not_started_ends() -> None:
    Poller(lambda: None, 1, name="test", failing="nothing is polled").stop()
