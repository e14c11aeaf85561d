"""From the words on a command line to an answer: a server of flags alone, as a user starts it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.integration.processes import free_port, wait_for
from tests.integration.warm.start import run, start

pytestmark = pytest.mark.slow

HOTDRAFT = [sys.executable, "-m", "hotdraft"]


@dataclass(frozen=True)
class Door:
    url: str
    said: str
    folder: Path


@pytest.fixture(scope="module")
def door(pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    target, draft = pair
    folder, port = tmp_path_factory.mktemp("home"), free_port()
    words = [
        "serve",
        target,
        "--draft",
        draft,
        "--run-dir",
        str(folder / "run"),
        "--port",
        str(port),
        "--self-improve",
    ]
    words += ["--served-model-name", "mine", "--max-model-len", "128", "--max-num-seqs", "2", "--api-key", "secret"]
    words += ["--speculative-config", '{"model": "' + draft + '", "num_speculative_tokens": 2}']
    log = folder / "log"
    with log.open("wb") as output:
        process = start([*HOTDRAFT, *words], stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_for("the banner", lambda: "to end" in log.read_text() or process.poll() is not None)
        yield Door(f"http://127.0.0.1:{port}", log.read_text(), folder)
    finally:
        process.terminate()
        process.wait(60)


def headers() -> dict[str, str]:
    return {"Authorization": "Bearer secret"}


def test_it_says_where_things_are_once_they_are_there(door: Door) -> None:
    for shown in (f"{door.url}/v1", f"{door.url}/docs", "trainer.log", "run/replay", "serve.yaml", "computed by"):
        assert shown in door.said
    page = httpx.get(f"{door.url}/", follow_redirects=True)
    assert (page.status_code, page.url.path) == (200, "/dashboard")


def test_it_answers_as_the_flags_say(door: Door) -> None:
    body = {"model": "mine", "messages": [{"role": "user", "content": "alpha"}], "max_tokens": 4, "temperature": 0}
    assert httpx.post(f"{door.url}/v1/chat/completions", json=body).status_code == 401
    answer = httpx.post(f"{door.url}/v1/chat/completions", json=body, headers=headers(), timeout=60).json()
    assert answer["usage"]["completion_tokens"] <= 4
    status = httpx.get(f"{door.url}/admin/status", headers=headers()).json()
    assert (status["k"], status["num_slots"], status["trainer"]) == (2, 2, "running")


def test_every_other_command_takes_the_file_that_it_wrote(door: Door) -> None:
    written = door.folder / "run" / "serve.yaml"
    assert "secret" not in written.read_text()
    told = run([*HOTDRAFT, "adapters", "list", "--config", str(written)], timeout=120)
    assert (told.returncode, "no adapters yet" in told.stdout) == (0, True), told.stderr


@pytest.mark.parametrize(
    ("words", "role"), [(("serve", "--port", "0"), "server"), (("distill", "--follow"), "trainer")]
)
def test_a_second_one_in_its_run_dir_is_refused(door: Door, words: tuple[str, ...], role: str) -> None:
    written = door.folder / "run" / "serve.yaml"
    told = run([*HOTDRAFT, *words, "--config", str(written)], timeout=120, env=dict(os.environ))
    assert told.returncode == 2
    assert f"another {role}, process " in told.stderr
    assert "Traceback" not in told.stderr


def test_a_second_one_at_its_port_is_refused_at_once(door: Door) -> None:
    written = door.folder / "run" / "serve.yaml"
    port = door.url.rpartition(":")[2]
    told = run([*HOTDRAFT, "serve", "--config", str(written), "--port", port], timeout=120)
    assert (told.returncode, f"serves at {door.url}" in told.stderr) == (2, True), told.stderr
