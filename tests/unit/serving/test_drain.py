"""How a server ends on a machine that has no room for more."""

import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI

from hotdraft.pipeline.config.serving import ServerConfig
from hotdraft.serving.http.connections import Connections
from hotdraft.serving.http.drain import DrainingServer


def test_a_server_that_may_start_no_more_threads_ends_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    engine: Any = SimpleNamespace(
        is_alive=True,
        is_idle=True,
        stop_accepting=lambda: called.append("stop_accepting"),
        stop=lambda: called.append("stop"),
    )
    listens = threading.Event()
    config = ServerConfig(port=0)
    server = DrainingServer(FastAPI(), config, engine, Connections(config, 9), lambda port: listens.set())
    running = threading.Thread(target=server.run, daemon=True)
    running.start()
    assert listens.wait(30)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    server.handle_exit(signal.SIGTERM, None)
    running.join(30)
    assert not running.is_alive()
    assert called == ["stop_accepting", "stop"]
