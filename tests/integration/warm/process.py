"""The client's side of a warm start: `Process` is a `subprocess.Popen` for a process that another one forks."""

import json
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[3]
"""That all is imported from."""
READ_AT_IMPORT = ("OMP_", "MKL_", "OPENBLAS_", "LD_", "CUDA_", "HF_", "TRANSFORMERS_", "PYTHONPATH")
"""Variables that a process which has imported everything hears of too late."""
MOST_BYTES = 100_000
"""Of a message."""
LEASH = "hotdraft.pipeline.processes.leash"


def module_of(command: Sequence[str]) -> tuple[str, list[str]] | None:
    """The module that `command` has Python run, and its arguments; None if it is another kind of command."""
    words = [word for number, word in enumerate(command) if not (number == 1 and word == "-P")]
    if len(words) < 3 or not Path(words[0]).name.startswith("python") or words[1] != "-m":
        return None
    return words[2], words[3:]


def same_at_import(environment: Mapping[str, str], warm: Mapping[str, str]) -> bool:
    return _read_at_import(environment) == _read_at_import(warm)


def _read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    read = {name: value for name, value in environment.items() if name.startswith(READ_AT_IMPORT)}
    others = [folder for folder in read.pop("PYTHONPATH", "").split(os.pathsep) if folder not in ("", str(ROOT))]
    return {**read, "PYTHONPATH": os.pathsep.join(others)}


class Process:
    """`python -m MODULE …` in a process of its own that is forked at `address`, without the wait for its imports.

    A command on the leash has its niceness, and ends when the process that asked for it does.
    """

    def __init__(
        self,
        address: str,
        command: Sequence[str],
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: IO[Any] | int = 1,
        stderr: IO[Any] | int = subprocess.STDOUT,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        start_new_session: bool = False,
        pass_fds: Sequence[int] = (),
        files: int | None = None,
    ) -> None:
        self.args = command
        self.returncode: int | None = None
        found = module_of(command)
        assert found is not None, command
        assert stdin == subprocess.DEVNULL
        module, arguments = found
        leash = module == LEASH
        niceness = 0
        if leash:
            niceness = int(arguments[1])
            module, arguments = module_of(arguments[2:])  # type: ignore[misc]
        with open(os.devnull, "r+b") as null:
            output = null if stdout == subprocess.DEVNULL else stdout
            error = {subprocess.STDOUT: output, subprocess.DEVNULL: null}.get(stderr, stderr)  # type: ignore[call-overload]
            streams = [stream if isinstance(stream, int) else stream.fileno() for stream in (null, output, error)]
            request = {
                "module": module,
                "arguments": arguments,
                "environment": dict(os.environ if env is None else env),
                "folder": str(cwd or Path.cwd()),
                "session": start_new_session,
                "leash": leash,
                "niceness": niceness,
                "files": files,
                "descriptors": [0, 1, 2, *pass_fds],
            }
            self._connection = connect(address)
            socket.send_fds(self._connection, [json.dumps(request).encode()], [*streams, *pass_fds])
        self._hearing = threading.Lock()
        pid = self._hear()
        if pid is None:
            raise ConnectionError("the process that forks has ended, its error is on the tests' own stderr")
        self.pid = pid

    def _hear(self) -> int | None:
        with suppress(ConnectionError):
            if said := self._connection.recv(MOST_BYTES):
                return int(said)
        return None

    def poll(self) -> int | None:
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            waiting = select.poll()
            waiting.register(self._connection, select.POLLIN)
            if waiting.poll(None if timeout is None else 1000 * timeout):
                with self._hearing:
                    if self.returncode is None:
                        code = self._hear()
                        # Where the process that forks has ended, the kernel killed all that it had forked.
                        self.returncode = -signal.SIGKILL if code is None else code
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def connect(address: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def leashed_by(address: str, pid: int) -> list[int]:
    """The processes that run on the leash of process `pid`."""
    with connect(address) as connection:
        connection.send(json.dumps({"leashed_by": pid}).encode())
        return json.loads(connection.recv(MOST_BYTES))
