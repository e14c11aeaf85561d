"""Ending what is under way at Ctrl-C, or as the machine or a terminal goes down, without losing it."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def stop_signals() -> list[signal.Signals]:
    """Those that end what is under way: SIGTERM, SIGINT and, but under `nohup`, SIGHUP."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([] if ignored else [signal.SIGHUP])]


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """An event that the first of `stop_signals` sets; a second one does what it does elsewhere."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in stop_signals()}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(*_: object) -> None:
        stop.set()
        restore()

    for number in before:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        restore()
