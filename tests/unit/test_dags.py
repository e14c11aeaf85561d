"""What the DAGs tell bash is what the command line takes: checked without Airflow, whose place mocks take."""

import os
import runpy
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import jinja2
import pytest
import typer

from hotdraft.cli import app
from hotdraft.pipeline.loop.job_record import Job
from hotdraft.pipeline.loop.trigger import Decision

FOLDER = Path(__file__).parents[2] / "dags"
GIVEN = {"config": "my pair's.yaml", "folder": "/", "prompts": ["a b.jsonl", "$HOME"], "slim": True, "out": "x;y"}
EXECUTABLE = """#!/bin/sh
for word in "$@"; do printf '%s\\n' "$word" >> "$WORDS"; done
echo '{'; echo '"due": true'; echo '}'
"""


class SkipError(Exception):
    pass


@dataclass
class Loaded:
    dag: dict[str, Any]
    operators: dict[str, dict[str, Any]]
    """Arguments of each BashOperator, by task id."""
    sdk: MagicMock


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    sdk, bash = MagicMock(), MagicMock()
    sdk.Param = lambda default, **schema: default
    monkeypatch.setitem(sys.modules, "airflow.sdk", sdk)
    monkeypatch.setitem(sys.modules, "airflow.sdk.exceptions", SimpleNamespace(AirflowSkipException=SkipError))
    monkeypatch.setitem(sys.modules, "airflow.providers.standard.operators.bash", bash)
    runpy.run_path(str(FOLDER / f"{name}.py"))
    operators = {call.kwargs["task_id"]: call.kwargs for call in bash.BashOperator.call_args_list}
    return Loaded(sdk.DAG.call_args.kwargs, operators, sdk)


@pytest.mark.parametrize("given", [{}, GIVEN], ids=["defaults", "given"])
@pytest.mark.parametrize(
    ("dag", "task", "words"),
    [
        ("predistill", "plan", ["predistill"]),
        ("predistill", "train", ["predistill"]),
        ("distill", "due", ["replay", "due"]),
        ("distill", "job", ["distill"]),
        ("acceptance_watch", "due", ["replay", "due"]),
    ],
)
def test_every_command_is_one_of_ours(dag, task, words, given, monkeypatch, tmp_path):
    loaded = load(dag, monkeypatch)
    params = {**loaded.dag["params"], **{key: given[key] for key in loaded.dag["params"] if key in given}}
    said, output = run(loaded, task, params, tmp_path)
    assert said[: len(words)] == words
    parsed = parse(said)
    assert parsed["config"] == Path(params["config"])
    if dag == "predistill":
        assert (parsed["prompts"] or []) == params["prompts"]
        assert parsed["plan"] is (task == "plan")
        assert parsed["out"] == (None if task == "plan" else Path(params["out"]))
    else:
        assert parsed["as_json"]
        last_line = output.splitlines()[-1]
        assert loaded.operators[task]["output_processor"](last_line) == {"due": True}


def run(loaded: Loaded, task: str, params: dict[str, Any], tmp_path: Path) -> tuple[list[str], str]:
    """What bash gave an executable in the place of `hotdraft`, and printed."""
    executable, words = tmp_path / "hotdraft", tmp_path / "words"
    executable.write_text(EXECUTABLE)
    executable.chmod(0o755)
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    environment.filters.update(loaded.dag["user_defined_filters"])
    command = environment.from_string(loaded.operators[task]["bash_command"]).render(params=params)
    environ = {**os.environ, "HOTDRAFT_BIN": str(executable), "WORDS": str(words)}
    done = subprocess.run(["bash", "-c", command], env=environ, capture_output=True, text=True, check=True)
    return words.read_text().splitlines(), done.stdout


def parse(words: list[str]) -> dict[str, Any]:
    """The parameters that our command line reads from `words`; it raises for what it does not know."""
    command, rest = typer.main.get_command(app), list(words)
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    return command.make_context("hotdraft", rest).params


def test_a_failing_command_fails_its_task(monkeypatch, tmp_path):
    loaded = load("distill", monkeypatch)
    monkeypatch.setitem(globals(), "EXECUTABLE", "#!/bin/sh\ntouch $WORDS\nexit 2\n")
    with pytest.raises(subprocess.CalledProcessError, match="exit status 2"):
        run(loaded, "job", loaded.dag["params"], tmp_path)


@pytest.mark.parametrize(
    ("run_type", "due", "possible", "loop_enabled", "expected"),
    [
        ("asset_triggered", True, True, True, True),
        ("asset_triggered", False, True, True, False),
        ("scheduled", False, True, True, True),
        ("scheduled", False, True, False, False),
        ("asset_triggered", True, True, False, False),
        ("manual", False, True, False, True),
        ("manual", False, False, True, False),
    ],
)
def test_when_a_job_is_worth_it(run_type, due, possible, loop_enabled, expected, monkeypatch):
    (worth_a_job,) = load("distill", monkeypatch).sdk.task.short_circuit.call_args.args
    decision = {**vars(Decision(due, "why", 1, 1, possible)), "loop_enabled": loop_enabled}
    assert worth_a_job(decision, dag_run=SimpleNamespace(run_type=run_type)) is expected


@pytest.mark.parametrize("promoted", [True, False])
def test_a_version_is_announced_where_it_serves_and_not_where_it_passed_beside_a_pinned_one(promoted, monkeypatch):
    sdk = load("distill", monkeypatch).sdk
    (champion,) = sdk.task.return_value.call_args.args
    job = Job("j", "command", "accepted", 0.0, version=3, promoted=promoted, reason="gain +0.1", run_id="r")
    events = {sdk.Asset.return_value: SimpleNamespace(extra=None)}
    if promoted:
        champion(asdict(job), outlet_events=events)
        assert events[sdk.Asset.return_value].extra == {"version": 3, "reason": "gain +0.1", "run_id": "r"}
        return
    with pytest.raises(SkipError, match=r"version 3 was not promoted: gain \+0\.1"):
        champion(asdict(job), outlet_events=events)
