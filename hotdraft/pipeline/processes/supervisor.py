"""Keeps the trainer running beside a live server: a child process that may die at any time."""

import json
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.processes.command_line import hotdraft_command, on_leash
from hotdraft.pipeline.processes.trainer import TrainerState
from hotdraft.pipeline.system.log_tail import log_tail

logger = logging.getLogger(__name__)

MAX_LOG_BYTES = 10_000_000
"""Above which a trainer that is started begins another log, and the one before it is kept."""


def environment_of(overrides: Mapping[str, Any], prefix: str = "HOTDRAFT") -> Iterator[tuple[str, str]]:
    """The environment variables that say the same as nested `overrides`; None says nothing."""
    for key, value in overrides.items():
        name = f"{prefix}{'_' if prefix == 'HOTDRAFT' else '__'}{key.upper()}"
        if isinstance(value, Mapping):
            yield from environment_of(value, name)
        elif isinstance(value, (str, Path)):
            yield name, str(value)
        elif value is not None:
            yield name, json.dumps(value)


def distill_command(config_path: Path, *arguments: str) -> list[str]:
    """``hotdraft distill`` in this interpreter."""
    return hotdraft_command("distill", "--config", str(config_path), *arguments)


def trainer_environment(config: HotdraftConfig, overrides: Mapping[str, Any] | None) -> dict[str, str]:
    """What a training process is to see: our environment, `overrides` and the limit on its threads."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **dict(environment_of(overrides or {}))}
    if config.distill.threads is not None:
        environment["OMP_NUM_THREADS"] = str(config.distill.threads)
    return environment


class TrainerSupervisor:
    """Runs ``hotdraft distill --follow`` as a child and starts it again when it ends.

    The child has its own process group, a lower priority, and its output in
    ``<run_dir>/trainer.log``; it is killed with this process, even by ``kill -9``. Restarts back
    off from `first_delay` to `longest_delay` seconds, anew after `healthy` seconds of running.
    """

    def __init__(
        self,
        config_path: Path,
        config: HotdraftConfig,
        overrides: Mapping[str, Any] | None = None,
        *,
        command: Sequence[str] | None = None,
        first_delay: float = 1.0,
        longest_delay: float = 60.0,
        healthy: float = 60.0,
    ) -> None:
        follow = list(command or distill_command(config_path, "--follow"))
        self._command = on_leash(follow, config.distill.nice)
        self._environment = trainer_environment(config, overrides)
        self.log_path = config.run_dir / "trainer.log"
        self._first_delay, self._longest_delay, self._healthy = first_delay, longest_delay, healthy
        self._process: subprocess.Popen[bytes] | None = None
        self._restarts = 0
        self._stopping = threading.Event()
        self._spawning = threading.Lock()
        # The kernel kills the child when the thread that started it ends, so one thread starts them all.
        self._thread = threading.Thread(target=self._keep_running, name="trainer-supervisor", daemon=True)

    @property
    def pid(self) -> int | None:
        """Process id of the trainer that runs now."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def restarts(self) -> int:
        return self._restarts

    @property
    def state(self) -> TrainerState:
        """`waiting` is between two lives of the trainer."""
        if self._stopping.is_set() or not self._thread.is_alive():
            return "stopped"
        return "waiting" if self.pid is None else "running"

    def start(self) -> None:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self._thread.start()

    def stop(self, patience: float = 10.0) -> None:
        """End the trainer: ask, and after `patience` seconds kill."""
        with self._spawning:
            self._stopping.set()
        process = self._process
        if process is not None:
            self._signal(process, signal.SIGTERM)
            try:
                process.wait(patience)
            except subprocess.TimeoutExpired:
                self._signal(process, signal.SIGKILL)
        if self._thread.is_alive():
            self._thread.join()

    def _keep_running(self) -> None:
        delay = self._first_delay
        while True:
            with self._spawning:
                if self._stopping.is_set():
                    return
                self._process = self._spawn()
            started = time.monotonic()
            code = self._process.wait() if self._process is not None else None
            if self._stopping.is_set():
                return
            if time.monotonic() - started >= self._healthy:
                delay = self._first_delay
            if code is not None:
                logger.warning(
                    "the trainer ended with %s, see %s; starting it again in %g s; it said last: %s",
                    code, self.log_path, delay, self._last_words(),
                )  # fmt: skip
            if self._stopping.wait(delay):
                return
            delay = min(2 * delay, self._longest_delay)
            self._restarts += 1

    def _last_words(self) -> str:
        try:
            return log_tail(self.log_path, 1).strip() or "nothing"
        except OSError as error:
            return f"what cannot be read: {error}"

    def _spawn(self) -> subprocess.Popen[bytes] | None:
        try:
            if self.log_path.exists() and self.log_path.stat().st_size > MAX_LOG_BYTES:
                self.log_path.replace(self.log_path.with_suffix(".log.1"))
            with self.log_path.open("ab") as log:
                return subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._environment,
                    start_new_session=True,
                )
        except OSError as error:  # out of memory or processes, a full disk: serving goes on
            logger.warning("the trainer could not be started, which is tried again: %s", error)
            return None

    @staticmethod
    def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
