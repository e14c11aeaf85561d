"""A server whose engine has died ends, so that whoever minds the process begins another."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from hotdraft.pipeline.processes.local_server import wait_until_healthy
from tests.integration.processes import free_port

DIES = """
from hotdraft.cli import main
from hotdraft.serving.engine.engine import Engine

step = Engine.step

def dying(engine):
    if engine.num_waiting:
        raise RuntimeError("the device is gone")
    step(engine)

Engine.step = dying
main()
"""


@pytest.mark.slow
def test_it_ends_with_a_code_that_is_no_success_and_says_why(
    write_config: Callable[..., Path], tmp_path: Path
) -> None:
    port, log = free_port(), tmp_path / "server.log"
    command = [sys.executable, "-c", DIES, "serve", "--config", str(write_config(tmp_path)), "--port", str(port)]
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_healthy(url, server, log)
        answer = httpx.post(f"{url}/v1/completions", json={"model": "tiny", "prompt": "alpha"}, timeout=60)
        assert answer.status_code == 500
        assert server.wait(60) == 1
    finally:
        server.kill()
    last = log.read_text().splitlines()[-1]
    assert last == "the server ends, as its engine did: RuntimeError: the device is gone"
