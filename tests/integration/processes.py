"""A `hotdraft serve` process and what a client, an operator or a `kill -9` does to it."""

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import openai
from prometheus_client.parser import text_string_to_metric_families

from hotdraft.pipeline.processes.local_server import wait_until_healthy
from hotdraft.pipeline.system.log_tail import log_tail
from tests.integration.warm.process import Process
from tests.integration.warm.start import start, trainer_of

MODEL = "tiny"
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]

PORTS = range(10_000, 32_000)
"""Below those that the system gives to clients' connections, of which tests have hundreds."""


def free_port() -> int:
    """One at which nobody listens, by chance, so that two workers hardly ever take the same."""
    while True:
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def wait_for(what: str, reached: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The first true value of `reached`, which is asked ten times a second."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := reached():
            return value
        time.sleep(0.1)
    raise AssertionError(f"{what} did not happen in {seconds:g} s")


@dataclass(frozen=True)
class Answer:
    request: int
    draft_version: int
    drafted: int
    accepted: int


def acceptance_rate(answers: list[Answer]) -> float:
    return sum(answer.accepted for answer in answers) / sum(answer.drafted for answer in answers)


class Server:
    """Runs until `stop` or `kill`; `client` is OpenAI's own, which never retries here.

    With `files` it may open no more than as many. It and its trainers are forked from a process that has made
    their imports; not so when it is `cold`, and starts as a user's does.
    """

    def __init__(
        self, config: Path, log: Path, *arguments: str, files: int | None = None, cold: bool = False
    ) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        command = [sys.executable, "-m", "hotdraft", "serve", "--config", str(config), "--port", str(port)]
        command += arguments
        self.process: subprocess.Popen[bytes] | Process
        with log.open("ab") as output:
            if cold:
                assert files is None
                self.process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
                )
            else:
                self.process = start(command, stdout=output, files=files)
        try:
            wait_until_healthy(self.url, cast(subprocess.Popen[bytes], self.process), log)
        except BaseException:
            self.kill()
            raise
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0, timeout=60.0)

    def metric(self, name: str) -> float:
        """Sum of a metric over its labels."""
        text = httpx.get(f"{self.url}/metrics", timeout=30.0).text
        families = text_string_to_metric_families(text)
        return sum(sample.value for family in families for sample in family.samples if sample.name == name)

    @property
    def draft_version(self) -> int:
        return int(self.metric("hotdraft_draft_version"))

    def ask(self, number: int, **changes: Any) -> Answer:
        """A chat completion of random words, sampled at temperature 1; both depend on `number` alone."""
        words = random.Random(number).choices(WORDS, k=3)
        body: dict[str, Any] = {
            "model": MODEL,
            "messages": [{"role": "user", "content": " ".join(words)}],
            "max_tokens": 24,
            "temperature": 1.0,
            "seed": number,
            "metadata": {"domain": words[0]},
            "extra_body": {"ignore_eos": True},
        }
        completion = self.client.chat.completions.create(**{**body, **changes})
        assert completion.usage is not None
        assert completion.usage.completion_tokens == 24
        counts = (completion.model_extra or {})["hotdraft"]
        return Answer(number, counts["draft_version"], counts["drafted_tokens"], counts["accepted_tokens"])

    def ask_many(self, numbers: range, concurrency: int = 8) -> list[Answer]:
        """Answers in the order of `numbers`; the first failed request is raised."""
        with ThreadPoolExecutor(concurrency) as pool:
            return list(pool.map(self.ask, numbers))

    def trainer_pid(self) -> int | None:
        """Process id of the trainer that the server supervises, if one runs."""
        if isinstance(self.process, Process):
            return trainer_of(self.process)
        for children in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            for pid in children.read_text().split():
                if b"distill" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    return int(pid)
        return None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Ask the server to end, as an init system does; its exit code."""
        self.process.terminate()
        return self.process.wait(60)

    def words(self) -> str:
        return log_tail(self.log, 40)


class Trickle:
    """A client that asks without a pause for thought until it is left; every answer and failure is kept."""

    def __init__(self, server: Server, first: int, pause: float = 0.0) -> None:
        self.answers: list[Answer] = []
        self.failures: list[Exception] = []
        self._server, self._next, self._pause = server, first, pause
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Trickle":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set() and not self.failures:
            try:
                self.answers.append(self._server.ask(self._next))
            except (openai.OpenAIError, AssertionError) as error:
                self.failures.append(error)
            self._next += 1
            self._stopping.wait(self._pause)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def is_running(pid: int) -> bool:
    """Whether a process runs: a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
