"""Many clients at once: what they are told, what is left of them, and what they hear when the server ends."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.integration.processes import MODEL, Server, is_running, wait_for
from tests.scenarios.load import Outcome, load

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def idle(server: Server) -> bool:
    return server.metric("vllm:num_requests_running") == server.metric("vllm:num_requests_waiting") == 0


def test_a_crowd_is_answered_or_sent_away(write_config: Callable[..., Path], tmp_path: Path) -> None:
    config = write_config(tmp_path, engine={"max_queue": 20})
    server = Server(config, tmp_path / "server.log")
    try:
        outcome = asyncio.run(load(server.url, MODEL, clients=80, seconds=5))
        assert outcome.counts.keys() <= {"200", "503", "left"}
        assert outcome.counts["200"] > 20
        assert outcome.counts["503"], "80 clients do not fit 8 slots and 20 in the queue"
        assert outcome.counts["left"]
        wait_for("every slot free", lambda: idle(server), 10)
        server.ask(1)
        assert server.stop() == 0
    finally:
        server.kill()


class Background:
    """A crowd that asks while the test does something."""

    def __init__(self, url: str, seconds: float, max_tokens: int) -> None:
        self.outcome = Outcome()
        self._thread = threading.Thread(target=self._run, args=(url, seconds, max_tokens))
        self._thread.start()

    def _run(self, url: str, seconds: float, max_tokens: int) -> None:
        self.outcome = asyncio.run(load(url, MODEL, clients=40, seconds=seconds, max_tokens=max_tokens))

    def join(self) -> Outcome:
        self._thread.join()
        return self.outcome


SWALLOWS = """
import os, signal, sys, time
from pathlib import Path
from hotdraft.pipeline.config.settings import load_config
from hotdraft.serving.service import serve

def step(says):
    if says != "opening the stores":
        return
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.05)
    except SystemExit:
        print("swallowed", flush=True)

path = Path(sys.argv[1])
serve(load_config(path), config_path=path, overrides={}, self_improve=False, on_step=step,
      on_listening=lambda says: os._exit(7))
"""


def test_sigterm_that_is_swallowed_while_the_server_starts_still_ends_it(
    write_config: Callable[..., Path], tmp_path: Path
) -> None:
    """As a callback of a C library drops what is raised in it."""
    command = [sys.executable, "-c", SWALLOWS, str(write_config(tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "swallowed" in done.stdout) == (0, True), done.stderr


COUNTS = """
import gc, os, sys
from pathlib import Path
from hotdraft.pipeline.config.settings import load_config
from hotdraft.serving.service import serve

def listening(says):
    print(gc.get_freeze_count(), len(gc.get_objects()), flush=True)
    os._exit(0)

path = Path(sys.argv[1])
serve(load_config(path), config_path=path, overrides={}, self_improve=False, on_listening=listening)
"""


def test_no_collection_of_garbage_looks_through_what_was_loaded_before_the_first_request(
    write_config: Callable[..., Path], tmp_path: Path
) -> None:
    """Half a second in which every stream stood still, once in some thousand requests."""
    command = [sys.executable, "-c", COUNTS, str(write_config(tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    frozen, looked_through = map(int, done.stdout.split()[-2:])
    assert looked_through < frozen / 10


@pytest.mark.parametrize(
    ("number", "drain_seconds", "told"), [(signal.SIGTERM, 30, False), (signal.SIGHUP, 0.2, True)]
)
def test_sigterm_and_a_closed_terminal_under_load(
    write_config: Callable[..., Path], tmp_path: Path, number: signal.Signals, drain_seconds: float, told: bool
) -> None:
    config = write_config(tmp_path, server={"drain_seconds": drain_seconds})
    server = Server(config, tmp_path / "server.log", "--self-improve")
    try:
        trainer = wait_for("a trainer", server.trainer_pid)
        crowd = Background(server.url, seconds=20, max_tokens=100)
        wait_for("a queue", lambda: server.metric("vllm:num_requests_waiting") > 10)
        server.process.send_signal(number)
        if not told:
            wait_for("not ready", lambda: httpx.get(f"{server.url}/ready").status_code == 503, 5)
            assert httpx.get(f"{server.url}/health").status_code == 200
        assert server.process.wait(60) == 0
        counts = crowd.join().counts
        assert counts.keys() <= {"200", "503", "told 503", "left", "refused"}
        assert counts["200"] + counts["told 503"] > 0
        assert bool(counts["told 503"]) == told, counts
        assert not is_running(trainer)
    finally:
        server.kill()
