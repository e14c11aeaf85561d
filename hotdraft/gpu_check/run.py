"""Running the steps of a check, each in a process and within a time of its own."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hotdraft.gpu_check.plan import CheckPlan
from hotdraft.gpu_check.step_process import result_file
from hotdraft.gpu_check.steps import STEPS, Step
from hotdraft.pipeline.processes.command_line import MODULE

CHECKOUT = Path(__file__).parents[2]
"""What a step imports `hotdraft` from where it is not installed."""


def run(
    plan: CheckPlan,
    seconds: float,
    logs: Path,
    environ: Mapping[str, str],
    tell: Callable[[Step, dict[str, Any] | None], object],
    steps: Sequence[Step] = STEPS,
) -> dict[str, dict[str, Any]]:
    """Results by step, within `seconds` in all; `tell` hears of a step when it begins, and then its result.

    What a step leaves of its time the others have.
    """
    until = time.monotonic() + seconds
    results = {}
    for number, step in enumerate(steps):
        share = step.share / sum(later.share for later in steps[number:])
        limit = max(0.0, until - time.monotonic()) * share
        tell(step, None)
        began = time.monotonic()
        result = _perform(step, plan, limit, logs / f"{step.name}.log", environ)
        results[step.name] = {**result, "seconds": round(time.monotonic() - began, 1), "limit": round(limit, 1)}
        tell(step, results[step.name])
    return results


def _perform(step: Step, plan: CheckPlan, limit: float, log: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    path = os.pathsep.join([str(CHECKOUT), *filter(None, [environ.get("PYTHONPATH")])])
    command = [*MODULE, "hotdraft.gpu_check.step_process", step.name, plan.work]
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**environ, "PYTHONPATH": path},
            start_new_session=True,
        )
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        return {"state": "failed", "says": [f"did not end within its {limit:.0f} seconds"], "figures": {}}
    finally:
        _end(process)
    result = result_file(plan.folder, step.name)
    if not result.is_file():
        return {"state": "failed", "says": [f"its process ended with code {code}: see {log.name}"], "figures": {}}
    return json.loads(result.read_text())


def _end(process: subprocess.Popen[bytes]) -> None:
    """The step and what it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()
