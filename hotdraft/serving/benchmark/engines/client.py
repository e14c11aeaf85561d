"""The benchmark's end of a worker: starting it, asking it, ending it."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hotdraft.serving.benchmark.engines.engine import EngineSettings, Mode, PeerUnavailable, RunResult
from hotdraft.serving.benchmark.engines.protocol import (
    mode_from_json,
    mode_to_json,
    result_from_json,
    settings_to_json,
)

PACKAGES = Path(__file__).parents[4]
"""Where a worker under another Python finds `serving`."""
CLOSING_SECONDS = 10.0


class WorkerError(RuntimeError):
    """A worker that died or could not do what it was asked; the message holds its own words."""


@dataclass(frozen=True)
class Memory:
    """Resident memory in MB of 10^6 bytes."""

    now: float
    peak: float


class Worker:
    """An engine in a process of its own. A context manager, which ends the process.

    Start all workers first (`Worker(...)` returns at once) and then `wait_ready` for each.
    """

    def __init__(self, name: str, settings: EngineSettings, log: Path, environ: Mapping[str, str]) -> None:
        """`log` takes what the worker and its libraries print. `HOTDRAFT_BENCH_PYTHON_<NAME>` in `environ`
        names another Python that has the engine's packages."""
        self.name = name
        self.version = ""
        self.rss_imported_mb = 0.0
        self.memory: Memory | None = None
        self._modes: dict[int, list[Mode]] = {}
        self._log = log
        python = environ.get(f"HOTDRAFT_BENCH_PYTHON_{name.upper().replace('-', '_')}", sys.executable)
        path = os.pathsep.join([str(PACKAGES), *filter(None, [environ.get("PYTHONPATH")])])
        threads = str(settings.threads)
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [
                    python,
                    "-m",
                    "hotdraft.serving.benchmark.engines.worker",
                    name,
                    json.dumps(settings_to_json(settings)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={
                    **environ,
                    "PYTHONPATH": path,
                    "PYTHONSAFEPATH": "1",  # a checkout that is not built must not stand before what is installed
                    "OMP_NUM_THREADS": threads,
                    "MKL_NUM_THREADS": threads,
                },
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The end of its stdin ends a worker; one that is stuck is killed."""
        try:
            self._process.communicate(timeout=CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def wait_ready(self) -> None:
        """Return once the engine is loaded. Raises `PeerUnavailable` or `WorkerError`."""
        reply = self._read()
        if "unavailable" in reply:
            raise PeerUnavailable(reply["unavailable"])
        ready = reply["ready"]
        self.version = ready["version"]
        self.rss_imported_mb = ready["rss_imported_mb"]
        self._modes = {
            int(rows): [mode_from_json(mode) for mode in found] for rows, found in ready["modes"].items()
        }

    def modes(self, concurrency: int) -> list[Mode]:
        return self._modes[concurrency]

    def run(self, mode: Mode, prompts: list[list[int]], max_tokens: int, concurrency: int) -> RunResult:
        """See `BenchEngine.run`. Raises `WorkerError`."""
        request = {"prompts": prompts, "max_tokens": max_tokens, "concurrency": concurrency}
        reply = self._ask({**mode_to_json(mode), **request})
        self.memory = Memory(reply["rss_mb"], reply["rss_peak_mb"])
        return result_from_json(reply["run"])

    def measure(self, figure: str, rows: int) -> dict[str, float]:
        """See `Measurable.measure`. Raises `WorkerError`."""
        return self._ask({"measure": figure, "rows": rows})["measure"]

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerError(self._last_words()) from None
        reply = self._read()
        if "error" in reply:
            raise WorkerError(f"{self.name}: {reply['error']} (log: {self._log})")
        return reply

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerError(self._last_words())
        return json.loads(line)

    def _last_words(self) -> str:
        said = self._log.read_text(errors="replace").strip().splitlines()
        return f"{self.name}'s worker ended with code {self._process.wait()}: {' / '.join(said[-3:])}"
