"""A check's results for people and for scripts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotdraft.gpu_check.plan import DRAFTED
from hotdraft.gpu_check.steps import STEPS

NAME = "gpu-check"


@dataclass(frozen=True)
class Goal:
    """What a figure is to be on a data centre's GPU."""

    step: str
    figure: str
    """Its name there."""
    least: float
    aim: float


GOALS = (
    Goal("speed", "1 at once, plain, share of the bandwidth", 0.65, 0.85),
    Goal("speed", "1 at once, hotdraft k=auto, over its plain", 1.5, 2.5),
    Goal("batches", "8 at once, hotdraft k=auto, over its plain", 1.3, 1.6),
    Goal("speed", "1 at once, hotdraft k=auto, over transformers", 3.0, 5.0),
    Goal("sharing", "share that is left", 0.8, 0.95),
)


def write(out: Path, command: str, results: Mapping[str, Mapping[str, Any]]) -> None:
    """`gpu-check.json` and `gpu-check.md`; called after every step, so that what there is outlives what comes."""
    content = {"command": command, "drafted tokens a round": DRAFTED, "steps": results}
    (out / f"{NAME}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (out / f"{NAME}.md").write_text(_markdown(command, results), encoding="utf-8")


def _markdown(command: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [f"# `{command}`", "", "| step | | seconds | shows |", "| --- | --- | --- | --- |"]
    for step in STEPS:
        if step.name in results:
            result = results[step.name]
            says = "".join(f"; **{what}**" for what in result["says"])
            lines.append(f"| {step.name} | {result['state']} | {result['seconds']} | {step.shows}{says} |")
    lines += ["", "| goal | least | aim | found |", "| --- | --- | --- | --- |"]
    for goal in GOALS:
        found = results.get(goal.step, {}).get("figures", {}).get(goal.figure)
        lines.append(f"| {goal.figure} | {goal.least} | {goal.aim} | {show(found)} |")
    for name, result in results.items():
        if result["figures"]:
            lines += ["", f"## {name}", "", "| figure | |", "| --- | --- |"]
            lines += [f"| {figure} | {show(value)} |" for figure, value in result["figures"].items()]
    return "\n".join(lines) + "\n"


def show(value: Any) -> str:
    """A figure in four digits."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "-" if value is None else str(value)
