"""How a server ends: on a machine that has no room for more, and to who comes last."""

import signal
import socket
import threading
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI

from hotdraft.pipeline.config.serving import ServerConfig
from hotdraft.serving.http import drain
from hotdraft.serving.http.connections import Connections
from hotdraft.serving.http.drain import DrainingServer

Started = tuple[DrainingServer, int, threading.Thread]


@pytest.fixture
def called() -> list[str]:
    return []


@pytest.fixture
def started(called: list[str]) -> Started:
    """A server, its port, and the thread that it runs in."""
    engine: Any = SimpleNamespace(
        is_alive=True,
        is_idle=True,
        stop_accepting=lambda: called.append("stop_accepting"),
        stop=lambda: called.append("stop"),
    )
    listens: Queue[int] = Queue()
    config = ServerConfig(port=0)
    server = DrainingServer(FastAPI(), config, engine, Connections(config, 9), listens.put)
    running = threading.Thread(target=server.run, daemon=True)
    running.start()
    return server, listens.get(timeout=30), running


def test_a_server_that_may_start_no_more_threads_ends_in_order(
    started: Started, called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _, running = started

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    server.handle_exit(signal.SIGTERM, None)
    running.join(30)
    assert not running.is_alive()
    assert called == ["stop_accepting", "stop"]


def test_who_connects_just_before_the_door_closes_is_told_so(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, port, running = started
    clients: list[socket.socket] = []

    def connect(backlog: int) -> None:
        clients.append(socket.create_connection(("127.0.0.1", port), timeout=10))

    monkeypatch.setattr(drain, "SETTLE_SECONDS", 0)
    monkeypatch.setattr(server, "_listen", connect)
    server.handle_exit(signal.SIGTERM, None)
    running.join(30)
    (client,) = clients
    with client:
        answer = client.recv(65536)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"shutting down" in answer
