"""One step in a process of its own: `python -m hotdraft.gpu_check.step_process NAME WORK`.

Its result is a file of JSON in WORK; whatever else it prints is its log.
"""

import importlib
import importlib.util
import json
import sys
import traceback
from pathlib import Path
from typing import Any

from hotdraft.gpu_check.plan import CheckError, CheckPlan, Found
from hotdraft.gpu_check.steps import STEPS, Step


def result_file(work: Path, name: str) -> Path:
    return work / f"{name}.json"


def perform(step: Step, plan: CheckPlan) -> dict[str, Any]:
    """`state` (ok, failed or skipped), `says`, and `figures`."""
    needs = step.needs + (step.needs_on_gpu if plan.on_gpu else ())
    missing = [package for package in needs if importlib.util.find_spec(package) is None]
    if missing:
        return {"state": "skipped", "says": [f"needs {', '.join(missing)}"], "figures": {}}
    try:
        module, _, name = step.function.partition(".")
        found: Found = getattr(importlib.import_module(f"hotdraft.gpu_check.checks.{module}"), name)(plan)
    except CheckError as error:
        return {"state": "failed", "says": [str(error)], "figures": {}}
    except Exception as error:  # noqa: BLE001 -- whatever it is, the other steps go on
        traceback.print_exc()
        return {"state": "failed", "says": [f"{type(error).__name__}: {error}"], "figures": {}}
    return {"state": "failed" if found.wrong else "ok", "says": found.wrong, "figures": found.figures}


def main() -> None:
    name, work = sys.argv[1], Path(sys.argv[2])
    [step] = [step for step in STEPS if step.name == name]
    result = perform(step, CheckPlan.read(work))
    result_file(work, name).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
