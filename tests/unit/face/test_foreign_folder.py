"""Started where a project has its own `training`, `serving`, `pipeline` and `hotdraft` folders."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hotdraft.pipeline.processes.command_line import hotdraft_command, on_leash

CHECKOUT = Path(__file__).parents[3]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("training", "serving", "pipeline"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('of another project')\n")
    return tmp_path


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_a_script_imports_hotdraft_and_its_own_packages(project: Path) -> None:
    (project / "training" / "__init__.py").write_text("MINE = True\n")
    script = project / "script.py"
    script.write_text("from hotdraft import LLM, distill\nimport training\nprint(training.MINE, LLM.__name__)\n")
    done = run([sys.executable, str(script)], project)
    assert (done.stdout, done.returncode) == ("True LLM\n", 0), done.stderr


def test_the_command_line_starts_children_that_work(project: Path) -> None:
    (project / "hotdraft").mkdir()
    (project / "hotdraft" / "__init__.py").write_text("raise ImportError('of another project')\n")
    for command in (hotdraft_command("--version"), on_leash(hotdraft_command("--version"))):
        done = run(command, project)
        assert done.stdout.startswith("hotdraft "), done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is on a leash")
def test_what_begins_once_its_parent_is_gone_ends(project: Path) -> None:
    *leash, _, niceness, python, option = on_leash([sys.executable, "--version"])
    assert run([*leash, str(os.getpid()), niceness, python, option], project).stdout.startswith("Python")
    gone = run([*leash, "1", niceness, python, option], project)
    assert (gone.returncode, gone.stdout) == (1, "")


@pytest.mark.slow
def test_a_job_begins(project: Path) -> None:
    (project / "config.yaml").write_text("target: nowhere\ndraft: nowhere\n")
    done = run(hotdraft_command("distill", "--config", "config.yaml"), project)
    assert "the replay buffer is empty" in done.stderr, done.stderr
