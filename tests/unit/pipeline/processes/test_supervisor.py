import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hotdraft.pipeline.config.learning import DistillConfig
from hotdraft.pipeline.config.settings import HotdraftConfig, load_config
from hotdraft.pipeline.processes.supervisor import TrainerSupervisor, environment_of

REPOSITORY = Path(__file__).parents[4]
SLEEP = [sys.executable, "-S", "-c", "import time; print('up', flush=True); time.sleep(60)"]


def wait_until(condition, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


@pytest.fixture
def config(tmp_path: Path, monkeypatch) -> HotdraftConfig:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    return HotdraftConfig(target="tiny", run_dir=tmp_path / "run", distill=DistillConfig(nice=7, threads=1))


@pytest.fixture
def supervise(config):
    """Starts supervisors of a command and stops them after the test."""
    started = []

    def start(command, overrides=None, **delays):
        supervisor = TrainerSupervisor(Path("c.yaml"), config, overrides, command=command, **delays)
        started.append(supervisor)
        supervisor.start()
        return supervisor

    yield start
    for supervisor in started:
        supervisor.stop()


def is_up(supervisor) -> bool:
    try:
        return "up" in supervisor.log_path.read_text()
    except FileNotFoundError:  # not begun yet, or put aside just now
        return False


def test_child_has_its_own_group_low_priority_and_settings(supervise):
    command = [
        sys.executable,
        "-S",
        "-c",
        "import os, time; print(os.getpid() == os.getpgrp(), os.nice(0), os.environ['OMP_NUM_THREADS'],"
        "os.environ['HOTDRAFT_DISTILL__MAX_STEPS'], 'up', flush=True); time.sleep(60)",
    ]
    before = os.nice(0)
    supervisor = supervise(command, {"distill": {"max_steps": 5}})
    wait_until(lambda: is_up(supervisor))
    assert supervisor.log_path.read_text().split() == ["True", str(min(before + 7, 19)), "1", "5", "up"]
    assert supervisor.state == "running"
    assert os.nice(0) == before


def test_killed_child_is_started_again(supervise):
    supervisor = supervise(SLEEP, first_delay=0.05)
    wait_until(lambda: supervisor.pid is not None)
    first = supervisor.pid
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: supervisor.restarts == 1 and supervisor.pid is not None)
    assert supervisor.pid != first
    assert supervisor.state == "running"


def test_a_long_log_is_put_aside_when_the_trainer_starts(supervise, config, monkeypatch):
    monkeypatch.setattr("hotdraft.pipeline.processes.supervisor.MAX_LOG_BYTES", 100)
    config.run_dir.mkdir()
    (config.run_dir / "trainer.log").write_text("x" * 101)
    supervisor = supervise(SLEEP)
    wait_until(lambda: is_up(supervisor))
    assert (config.run_dir / "trainer.log.1").read_text() == "x" * 101
    assert supervisor.log_path.read_text() == "up\n"


def test_restarts_back_off_up_to_a_limit(supervise, caplog):
    command = [sys.executable, "-S", "-c", "raise SystemExit(3)"]
    supervisor = supervise(command, first_delay=0.05, longest_delay=0.2)
    wait_until(lambda: supervisor.restarts >= 4)
    supervisor.stop()
    delays = [record.args[2] for record in caplog.records]
    assert delays[:4] == [0.05, 0.1, 0.2, 0.2]
    assert caplog.records[0].args[0] == 3


def test_why_it_ended_stands_in_the_servers_log_too(supervise, caplog):
    why = "another trainer, process 7, works in runs/a"
    supervisor = supervise([sys.executable, "-S", "-c", f"raise SystemExit({why!r})"], first_delay=0.05)
    wait_until(lambda: supervisor.restarts >= 1)
    supervisor.stop()
    assert caplog.messages[0].endswith(f"it said last: {why}")


def test_a_healthy_life_resets_the_delay(supervise, caplog):
    command = [sys.executable, "-S", "-c", "import time; time.sleep(0.1)"]
    supervisor = supervise(command, first_delay=0.05, longest_delay=0.2, healthy=0.05)
    wait_until(lambda: supervisor.restarts >= 3)
    supervisor.stop()
    assert {record.args[2] for record in caplog.records} == {0.05}


def test_stop_ends_the_child_and_starts_no_other(supervise):
    supervisor = supervise(SLEEP, first_delay=0.01)
    wait_until(lambda: is_up(supervisor))
    pid = supervisor.pid
    supervisor.stop()
    assert not alive(pid)
    assert (supervisor.state, supervisor.pid, supervisor.restarts) == ("stopped", None, 0)


def test_stop_kills_a_child_that_does_not_listen(supervise):
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    supervisor = supervise([*SLEEP[:-1], deaf + SLEEP[-1]])
    wait_until(lambda: is_up(supervisor))
    pid = supervisor.pid
    supervisor.stop(patience=0.1)
    assert not alive(pid)


def test_stop_does_not_wait_for_the_next_start(supervise):
    supervisor = supervise([sys.executable, "-S", "-c", ""], first_delay=30)
    wait_until(lambda: supervisor.state == "waiting" and supervisor.log_path.exists() and supervisor.pid is None)
    started = time.monotonic()
    supervisor.stop()
    assert time.monotonic() - started < 5


def test_command_that_cannot_be_run_is_tried_again_and_told_in_a_line(supervise):
    supervisor = supervise(["/no/such/program"], first_delay=0.01)
    wait_until(lambda: supervisor.restarts >= 1)
    said = "/no/such/program cannot be run: No such file or directory"
    assert set(supervisor.log_path.read_text().splitlines()) == {said}


def test_a_trainer_that_cannot_be_started_is_tried_again_and_told_in_a_line(supervise, config, caplog):
    config.run_dir.joinpath("trainer.log").mkdir(parents=True)
    supervisor = supervise(SLEEP, first_delay=0.01)
    wait_until(lambda: supervisor.restarts >= 1)
    supervisor.stop()
    assert "could not be started, which is tried again: [Errno 21] Is a directory" in caplog.messages[0]
    assert not any(record.exc_info or "ended with" in record.message for record in caplog.records)


PARENT = """
import sys, time
from pathlib import Path
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.processes.supervisor import TrainerSupervisor

config = HotdraftConfig(target="tiny", run_dir=Path(sys.argv[1]))
supervisor = TrainerSupervisor(Path("c.yaml"), config, command=sys.argv[2:])
supervisor.start()
while not (supervisor.log_path.exists() and "up" in supervisor.log_path.read_text()):
    time.sleep(0.01)
print(supervisor.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the leash is Linux's")
def test_child_dies_with_a_killed_parent(config, tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "killed"), *SLEEP], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert alive(child)
    parent.kill()
    parent.wait()
    wait_until(lambda: not alive(child))


def test_default_command_follows_the_buffer(config):
    supervisor = TrainerSupervisor(Path("some.yaml"), config)
    assert supervisor._command[-6:] == ["-m", "hotdraft", "distill", "--config", "some.yaml", "--follow"]


def test_environment_says_what_the_overrides_said(tmp_path, monkeypatch):
    overrides = {
        "run_dir": tmp_path,
        "draft": None,
        "recorder": {"enabled": False},
        "distill": {"lora": {"rank": 8, "target_modules": ["q_proj", "v_proj"]}, "learning_rate": 1e-4},
    }
    path = tmp_path / "c.yaml"
    path.write_text("target: tiny\ndistill:\n  max_steps: 3\n")
    expected = load_config(path, overrides).model_dump()
    for name, value in environment_of(overrides):
        monkeypatch.setenv(name, value)
    assert load_config(path).model_dump() == expected
