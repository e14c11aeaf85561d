import json
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hotdraft.cli import app
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.controls import ControlError, ControlFile, Controls, k_setting, largest_k
from hotdraft.pipeline.system.run_lock import run_lock


@pytest.fixture
def file(tmp_path: Path) -> ControlFile:
    return ControlFile(tmp_path / "run")


def test_what_is_written_is_read_by_others(file, tmp_path):
    assert file.read() == Controls() == Controls(loop_enabled=True, k=None)
    assert file.switch_loop(False) == Controls(loop_enabled=False)
    assert file.override_k(2, 4, 3) == Controls(loop_enabled=False, k=2)
    other = ControlFile(tmp_path / "run")
    assert other.read() == Controls(loop_enabled=False, k=2)
    other.override_k("auto", 4, 3)
    other.switch_loop(True)
    assert file.read() == Controls(k="auto")
    assert file.override_k(None, 4, 3) == Controls()


def test_a_k_that_the_server_does_not_allow(file):
    for k, largest, message in ((5, 4, "allows 4 at most"), (1, 0, "no draft"), ("auto", 0, "no draft")):
        with pytest.raises(ControlError, match=message):
            file.override_k(k, largest, 3)
    assert file.override_k(4, 4, 3).k == 4, "the largest is one of them"
    assert file.override_k(0, 0, 3).k == 0
    assert file.override_k("auto", 0, "auto").k == "auto", "as a server is configured that guesses from text alone"
    fixed = {"target": "t", "draft": "d", "engine": {"k": 3, "max_k": 5}}
    assert largest_k(HotdraftConfig(**fixed)) == 3
    assert largest_k(HotdraftConfig(**{**fixed, "engine": {"max_k": 5}})) == 5
    assert largest_k(HotdraftConfig(target="t")) == 0


def test_a_whole_number_is_one_however_json_writes_it():
    assert [k_setting(value) for value in (3, 3.0, "auto", None)] == [3, 3, "auto", None]
    for value in (3.5, True, "3", -1.0):
        with pytest.raises(ControlError, match=r"^k must be a whole number from 0 to \d+, or auto, not "):
            k_setting(value)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"k": 17}', '{"k": "3"}', '{"k": true}', '{"loop_enabled": "no"}', '{"loop": true}']
)
def test_a_broken_file_leaves_what_was_set_and_is_complained_of_once(file, tmp_path, text, caplog):
    file.switch_loop(False)
    assert not file.read().loop_enabled
    (tmp_path / "run" / "control.json").write_text(text)
    assert file.read() == file.read() == Controls(loop_enabled=False)
    later = ControlFile(tmp_path / "run")
    assert later.read() == Controls(loop_enabled=False), "whoever comes later cannot know that it was on"
    assert caplog.text.count("is broken") == 2
    assert all(len(record.message.splitlines()) == 1 for record in caplog.records)
    assert file.override_k(1, 4, 3) == file.read() == Controls(loop_enabled=False, k=1)


def test_a_file_that_breaks_the_same_way_again_is_complained_of_again(file, tmp_path, caplog):
    for times in (1, 2):
        file.switch_loop(False)
        file.read()
        (tmp_path / "run" / "control.json").write_text("{")
        file.read()
        file.read()
        assert caplog.text.count("is broken") == times
        assert "is broken" in file.broken()


def test_writers_at_once_lose_nothing(file, tmp_path):
    def write(turn) -> None:
        for number in range(20):
            turn(ControlFile(tmp_path / "run"), number)

    threads = [
        threading.Thread(target=write, args=[turn])
        for turn in (lambda f, n: f.switch_loop(n % 2 == 0), lambda f, n: f.override_k(n % 5, 4, 3))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert file.read() == Controls(loop_enabled=False, k=4)


@pytest.fixture
def hotdraft(tmp_path: Path):
    path = tmp_path / "c.yaml"
    path.write_text(f"target: t\ndraft: d\nrun_dir: {tmp_path / 'run'}\nengine: {{k: 3}}\n")

    def run(*arguments: str):
        return CliRunner().invoke(app, [*arguments, "--config", str(path)])

    return run


def test_the_commands(hotdraft, file):
    assert hotdraft("loop", "status").stdout == "the loop is on\n"
    assert hotdraft("loop", "off").stdout == "the loop is off\n"
    assert not file.read().loop_enabled
    assert hotdraft("k").stdout == "k is as configured (3)\n"
    assert hotdraft("k", "2").stdout == "k is 2 instead of the configured 3\n"
    assert json.loads(hotdraft("k", "auto", "--json").stdout) == {"loop_enabled": False, "k": "auto"}
    assert json.loads(hotdraft("loop", "on", "--json").stdout) == {"loop_enabled": True, "k": "auto"}
    assert hotdraft("k", "config").stdout == "k is as configured (3)\n"
    assert file.read() == Controls()
    for wrong, message in (("17", "from 0 to 16"), ("two", "from 0 to 16"), ("4", "allows 3 at most")):
        refused = hotdraft("k", wrong).exception
        assert isinstance(refused, ControlError)
        assert message in str(refused)
    assert file.read() == Controls()


def test_that_no_server_hears_of_k_is_said(hotdraft, tmp_path):
    run_dir = tmp_path / "run"
    (run_dir / "jobs").mkdir(parents=True)
    assert f"no server of this machine runs in {run_dir}" in hotdraft("k", "2").stderr
    with run_lock(run_dir, "server"):
        assert hotdraft("k", "2").stderr == ""


def test_over_vllm_k_is_fixed_and_the_file_says_nothing_else(hotdraft, file, monkeypatch):
    monkeypatch.setenv("HOTDRAFT_ENGINE__KIND", "vllm")
    refused = hotdraft("k", "0").exception
    assert isinstance(refused, ControlError)
    assert "fixed" in str(refused)
    assert file.read() == Controls()
    assert hotdraft("k", "config").stdout == "k is as configured (3)\n"
