"""Steps run by themselves: what one does, or does not survive, is its own affair."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hotdraft.gpu_check import run as running
from hotdraft.gpu_check.plan import CheckPlan
from hotdraft.gpu_check.run import run
from hotdraft.gpu_check.steps import Step

pytestmark = pytest.mark.slow

MODULE = """
import os, signal, subprocess, sys, time
from hotdraft.gpu_check.plan import CheckError, Found

def fine(plan): return Found({"device": plan.device})
def wrong(plan): return Found({"seen": 1}, ["a token is another"])
def raises(plan): raise CheckError("there are no models")
def fails(plan): return 1 / 0
def killed(plan): os.kill(os.getpid(), signal.SIGKILL)
def hangs(plan):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(plan.work + "/child", "w").write(str(child.pid))
    time.sleep(600)
"""


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of steps that a module made here has."""
    (tmp_path / "made.py").write_text(MODULE)
    program = (
        "import importlib, sys; made = importlib.import_module('made');"
        "from hotdraft.gpu_check import step_process as it, steps;"
        "sys.modules['hotdraft.gpu_check.checks.made'] = made;"
        "name = sys.argv[1]; needs = ('nowhere',) * (name == 'lacks');"
        "it.STEPS = [steps.Step(name, 'made.' + name, 1, '', needs)];"
        "it.main()"
    )
    original = running.subprocess.Popen

    def popen(command: list[str], **told: Any) -> Any:
        return original([sys.executable, "-c", program, *command[-2:]], **told)

    monkeypatch.setattr(running.subprocess, "Popen", popen)
    plan = CheckPlan(str(tmp_path), "cpu", random=True, parameters=None)
    plan.write()

    def play(*names: str, seconds: float = 60.0) -> dict[str, dict[str, Any]]:
        environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
        steps = [Step(name, f"made.{name}", 1, "") for name in names]
        return run(plan, seconds, tmp_path, environ, lambda *_: None, steps)

    return play


def test_each_step_says_what_came_of_it_and_none_ends_the_others(results: Any) -> None:
    found = results("fine", "wrong", "raises", "fails", "killed", "lacks", "fine")
    assert {name: (result["state"], *result["says"]) for name, result in found.items()} == {
        "fine": ("ok",),
        "wrong": ("failed", "a token is another"),
        "raises": ("failed", "there are no models"),
        "fails": ("failed", "ZeroDivisionError: division by zero"),
        "killed": ("failed", "its process ended with code -9: see killed.log"),
        "lacks": ("skipped", "needs nowhere"),
    }
    assert found["fine"]["figures"] == {"device": "cpu"}
    assert found["wrong"]["figures"] == {"seen": 1}


def test_a_step_that_hangs_ends_with_what_it_started_and_leaves_the_others_their_time(
    results: Any, tmp_path: Path
) -> None:
    began = time.monotonic()
    found = results("hangs", "fine", seconds=24.0)
    assert time.monotonic() - began < 30
    assert found["hangs"]["says"] == ["did not end within its 12 seconds"]
    assert found["fine"]["state"] == "ok"
    child = int((tmp_path / "child").read_text())
    assert not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split(")")[1]
