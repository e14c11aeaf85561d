"""`python -m tests.integration.warm.forking DESCRIPTOR`: imports all of hotdraft once, then forks for each start.

What it forks has its own arguments, environment, files and signals, and runs its module as `python -m` would.
DESCRIPTOR is that of the listening socket. It ends with its standard input, and what it forked ends with it.
"""

import atexit
import ctypes
import gc
import importlib
import json
import os
import resource
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np

from hotdraft.cli import MLFLOW_DEFAULTS
from hotdraft.pipeline.processes.leash import PR_SET_PDEATHSIG
from tests.integration.warm.process import MOST_BYTES, Process, module_of, same_at_import

IMPORTED = (
    "hotdraft.gpu_check.checks.sharing",
    "hotdraft.gpu_check.run",
    "hotdraft.serving.service",
    "hotdraft.training.online.follow",
    "hotdraft.training.predistill.make",
    "mlflow.store.tracking.sqlalchemy_store",
    "transformers.models.llama.modeling_llama",
    "uvicorn.protocols.http.h11_impl",
)
STARTERS = (
    "hotdraft.gpu_check.checks.sharing",
    "hotdraft.gpu_check.run",
    "hotdraft.pipeline.processes.job_process",
    "hotdraft.pipeline.processes.local_server",
    "hotdraft.pipeline.processes.supervisor",
)
"""Modules that start processes which import much."""
ABOVE = 900
"""Descriptors that are put aside get numbers from here on."""


@dataclass
class Child:
    pid: int
    asker: int
    """The process that asked for it."""
    leash: bool
    ended: int
    """A descriptor that can be read when it has ended."""
    connection: socket.socket


def main() -> None:
    os.environ.update({name: os.environ.get(name, value) for name, value in MLFLOW_DEFAULTS.items()})
    for name in IMPORTED:
        importlib.import_module(name)
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, "a fork has only the thread that asks for it"
    gc.freeze()
    listener = socket.socket(fileno=int(sys.argv[1]))
    warm, address = dict(os.environ), listener.getsockname()
    request = Forks(listener).run()
    if request is not None:
        _start_warmly(address.decode() if isinstance(address, bytes) else address, warm)
        _run_to_the_end(request["module"])


class Forks:
    """Answers those who connect."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._children: dict[int, Child] = {}

    def run(self) -> dict[str, Any] | None:
        """Until the end of standard input, then None; or, in a process that was forked, what it is to run."""
        while True:
            waiting = select.poll()
            for number in (0, self._listener.fileno()):
                waiting.register(number, select.POLLIN)
            for child in self._children.values():
                waiting.register(child.ended, select.POLLIN)
                if child.leash:
                    waiting.register(child.connection, select.POLLIN)
            ready = {number for number, _ in waiting.poll()}
            if 0 in ready:
                self._end()
                return None
            for child in list(self._children.values()):
                if child.ended in ready:
                    self._reap(child)
                elif child.connection.fileno() in ready:
                    os.kill(child.pid, signal.SIGKILL)
                    child.leash = False
            if self._listener.fileno() in ready and (request := self._answer()):
                return request

    def _answer(self) -> dict[str, Any] | None:
        connection, _ = self._listener.accept()
        said, descriptors, _, _ = socket.recv_fds(connection, MOST_BYTES, 16)
        if not said:
            connection.close()
            return None
        request = json.loads(said)
        if "leashed_by" in request:
            pids = [child.pid for child in self._children.values()
                    if child.leash and child.asker == request["leashed_by"]]  # fmt: skip
            connection.send(json.dumps(pids).encode())
            connection.close()
            return None
        asker = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            connection.close()
            self._forget_all()
            _become(request, descriptors, parent)
            return request
        for descriptor in descriptors:
            os.close(descriptor)
        self._children[pid] = Child(pid, asker, request["leash"], os.pidfd_open(pid), connection)
        self._tell(connection, pid)
        return None

    def _reap(self, child: Child) -> None:
        status = os.waitpid(child.pid, 0)[1]
        self._tell(child.connection, os.waitstatus_to_exitcode(status))
        os.close(child.ended)
        child.connection.close()
        del self._children[child.pid]

    @staticmethod
    def _tell(connection: socket.socket, number: int) -> None:
        with suppress(OSError):  # who asked may have ended
            connection.send(str(number).encode())

    def _end(self) -> None:
        for child in list(self._children.values()):
            os.kill(child.pid, signal.SIGKILL)
            self._reap(child)

    def _forget_all(self) -> None:
        self._listener.close()
        for child in self._children.values():
            os.close(child.ended)
            child.connection.close()


def _become(request: dict[str, Any], descriptors: list[int], parent: int) -> None:
    """Make this process, just forked, the one that `request` describes."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    aside = [os.dup2(number, ABOVE + count) for count, number in enumerate(descriptors)]
    for number in descriptors:
        os.close(number)
    for number, wanted in zip(aside, request["descriptors"], strict=True):
        os.dup2(number, wanted, inheritable=True)
        os.close(number)
    if request["session"]:
        os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whether or not the tests were started by `nohup`
    os.nice(request["niceness"])
    if request["files"] is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (request["files"],) * 2)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[1:] = request["arguments"]
    sys.stdout.reconfigure(line_buffering="PYTHONUNBUFFERED" in os.environ)  # type: ignore[union-attr]
    np.random.seed()  # Python's own generator does it by itself


def _start_warmly(address: str, warm: dict[str, str]) -> None:
    """What this process starts is forked at `address` as well, where that can be."""

    def popen(command: list[str], **options: Any) -> Process | subprocess.Popen[bytes]:
        if module_of(command) is not None and same_at_import(options.get("env") or os.environ, warm):
            return Process(address, command, **options)
        return subprocess.Popen(command, **options)

    changed = SimpleNamespace(**{**vars(subprocess), "Popen": popen})
    for name in STARTERS:
        module = importlib.import_module(name)
        module.subprocess = changed  # type: ignore[attr-defined]


def _run_to_the_end(module: str) -> NoReturn:
    """As the interpreter does, but for freeing all that was imported, which would copy it."""
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 -- it goes where Python's own would
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main()
