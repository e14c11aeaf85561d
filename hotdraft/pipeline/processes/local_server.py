"""A `hotdraft serve` of our own, as a child process for as long as a simulation lasts."""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from hotdraft.pipeline.processes.command_line import hotdraft_command, on_leash
from hotdraft.pipeline.processes.supervisor import environment_of
from hotdraft.pipeline.system.log_tail import log_tail
from hotdraft.pipeline.system.ports import free_port

START_SECONDS = 600.0
STOP_SECONDS = 30.0


class ServerError(RuntimeError):
    """The server did not come up; the message ends with the last lines of its log."""


@contextmanager
def local_server(
    config: Path,
    log: Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    command: Sequence[str] | None = None,
) -> Iterator[str]:
    """Serve `config`, changed by the nested `overrides`, with the self-improvement loop; yields the base URL.

    What the server prints goes to `log`. It is stopped by SIGTERM at the end. `command` replaces
    `hotdraft serve --config … --self-improve`; `--port N` is appended to either.

    Raises `ServerError` when the server ends or stays silent instead of answering `/health`.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    serve = command or hotdraft_command("serve", "--config", str(config), "--self-improve")
    ours = {"PYTHONUNBUFFERED": "1", "HOTDRAFT_SERVER__HOST": "127.0.0.1"}  # wherever others are served
    environment = {**os.environ, **ours, **dict(environment_of(overrides or {}))}
    with log.open("wb") as output:
        process = subprocess.Popen(
            # On the leash it ends with this process even when that is killed.
            on_leash([*serve, "--port", str(port)]),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    try:
        wait_until_healthy(url, process, log)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return once `GET /health` answers 200, asked by no proxy. Raises `ServerError` if that does not happen."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerError(f"the server ended with {process.returncode} while starting:\n{log_tail(log)}")
        with suppress(httpx.HTTPError):
            if httpx.get(f"{url}/health", timeout=5.0, trust_env=False).status_code == 200:
                return
        time.sleep(0.1)
    raise ServerError(f"the server did not answer {url}/health in {START_SECONDS:g} s:\n{log_tail(log)}")
