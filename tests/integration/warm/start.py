"""Starting `hotdraft` in tests: a fork of a process that has imported it, one for each process of the tests."""

import atexit
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from tests.integration.warm.process import ROOT, Process, leashed_by, module_of, same_at_import

PARENT = "tests.integration.warm.forking"


@cache
def _parent() -> tuple[str, Mapping[str, str]]:
    """Where forks are asked for, and the environment that the imports saw."""
    address = f"\0hotdraft-tests-{os.getpid()}-{os.urandom(4).hex()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(64)
        process = subprocess.Popen(
            [sys.executable, "-m", PARENT, str(listener.fileno())],
            stdin=subprocess.PIPE,  # its end is that of the tests, however they end
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            cwd=ROOT,
            # A thread that Arrow's allocator starts when it is imported would be missing from a fork.
            env={**os.environ, "JE_ARROW_MALLOC_CONF": "background_thread:false"},
            start_new_session=True,
        )
    atexit.register(_end, process)
    return address, dict(os.environ)


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait(30)


def start(command: Sequence[str], **options: Any) -> Process:
    """`subprocess.Popen` of a `python -m …`, without the wait for what it imports."""
    address, warm = _parent()
    assert module_of(command) is not None, command
    assert same_at_import(options.get("env") or os.environ, warm), "set when the imports were made"
    return Process(address, command, **options)


def run(
    command: Sequence[str], *, timeout: float | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """`subprocess.run`, likewise, which captures the text of both streams."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as error:
        process = start(command, stdout=output, stderr=error, **options)
        try:
            code = process.wait(timeout)
        except BaseException:
            process.kill()
            raise
        for file in (output, error):
            file.seek(0)
        return subprocess.CompletedProcess(list(command), code, output.read(), error.read())


def trainer_of(server: Process) -> int | None:
    """Process id of the trainer that `server` supervises, if one runs."""
    pids = leashed_by(_parent()[0], server.pid)
    return pids[0] if pids else None
