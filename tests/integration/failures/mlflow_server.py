"""An `mlflow server` process that a test may take away and bring back."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from hotdraft.pipeline.processes.local_server import log_tail
from tests.integration.processes import free_port, wait_for

START_SECONDS = 120.0


class MlflowServer:
    """MLflow's own server over a SQLite file, which keeps artifacts itself; down until `start`.

    It starts without the eight processes of its job queues, which nothing here asks for.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = folder / "mlflow.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port),
            "--workers", "1", "--backend-store-uri", f"sqlite:///{self.folder / 'mlflow.db'}",
            "--artifacts-destination", str(self.folder / "artifacts"),
        ]  # fmt: skip
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "MLFLOW_DISABLE_TELEMETRY": "true",
                    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
                },
                start_new_session=True,
            )
        wait_for("MLflow's server", self._answers, START_SECONDS)

    def kill(self) -> None:
        """At once, and with the processes that it started."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, log_tail(self._log, 40)
        try:
            return httpx.get(f"{self.url}/health", timeout=5.0).status_code == 200
        except httpx.HTTPError:
            return False
