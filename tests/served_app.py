"""An application behind a real uvicorn, in a thread of this process."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI


@contextmanager
def running(app: FastAPI, port: int = 0, **options: Any) -> Iterator[tuple[str, uvicorn.Server]]:
    """Its URL, and what serves it with these options."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
        runner = uvicorn.Server(uvicorn.Config(app, log_level="critical", **options))
        thread = threading.Thread(target=runner.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        while not runner.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{sock.getsockname()[1]}", runner
        runner.should_exit = True
        thread.join(10)


@contextmanager
def served(app: FastAPI, port: int = 0) -> Iterator[str]:
    """Its URL."""
    with running(app, port, timeout_graceful_shutdown=1) as (url, _):
        yield url
