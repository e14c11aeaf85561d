"""The DAGs under a real Airflow, with the real command line and a tiny pair.

`HOTDRAFT_AIRFLOW_PYTHON` names the interpreter of an environment that has Airflow.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotdraft.pipeline.config.settings import load_config
from hotdraft.pipeline.store.registry import AdapterRegistry
from tests.integration.processes import Server

PYTHON = os.environ.get("HOTDRAFT_AIRFLOW_PYTHON")
ROOT = Path(__file__).parents[3]
PREDISTILL = {"layers": 1, "builtin_prompts": 0, "max_tokens": 12, "max_steps": 12, "validation_steps": 6}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(PYTHON is None, reason="HOTDRAFT_AIRFLOW_PYTHON names no interpreter that has Airflow"),
]


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """`airflow()` tells what the DAGs are, `airflow(dag_id, **params)` runs one."""
    assert PYTHON is not None
    home = tmp_path_factory.mktemp("airflow")
    hotdraft = home / "hotdraft"  # as an installed one: with nothing but its own environment
    hotdraft.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m hotdraft "$@"\n')
    hotdraft.chmod(0o755)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "HOTDRAFT_BIN": str(hotdraft),
    }

    def call(*arguments: str) -> None:
        done = subprocess.run([PYTHON, *arguments], env=environ, capture_output=True, text=True, cwd=home)
        assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]

    def ask(*dag_id: str, **params: Any) -> dict[str, Any]:
        out = home / "answer.json"
        conf = [json.dumps(params)] if dag_id else []
        call(str(Path(__file__).with_name("airflow_dags.py")), str(out), *dag_id, *conf)
        return json.loads(out.read_text())

    call("-m", "airflow", "db", "migrate")
    return ask


@pytest.fixture(scope="module")
def recorded(write_config: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration whose replay buffer holds what a server recorded."""
    folder = tmp_path_factory.mktemp("recorded")
    config = write_config(folder, predistill=PREDISTILL)
    server = Server(config, folder / "server.log")
    try:
        server.ask_many(range(120))
        assert server.stop() == 0
    finally:
        server.kill()
    return config


def test_the_dags_are_imported(airflow: Callable[..., dict[str, Any]]) -> None:
    found = airflow()
    assert found["import_errors"] == {}
    assert set(found["dags"]) == {"hotdraft_predistill", "hotdraft_distill", "hotdraft_acceptance_watch"}
    for dag in found["dags"].values():
        assert dag["doc"]
        assert not dag["catchup"]
        assert dag["max_active_runs"] == 1
        assert dag["params"]["config"] == {"type": "string", "minLength": 1}
        assert all(task["retries"] and task["backoff"] and task["timeout"] for task in dag["tasks"].values())
    distill = found["dags"]["hotdraft_distill"]
    assert distill["schedule"] == "AssetOrTimeSchedule"
    assert distill["tasks"]["job"]["after"] == ["worth_a_job"]
    assert distill["tasks"]["champion"]["outlets"] == ["hotdraft_champion"]
    assert found["dags"]["hotdraft_acceptance_watch"]["tasks"]["start_job"]["outlets"] == ["hotdraft_job_due"]
    assert found["dags"]["hotdraft_predistill"]["tasks"]["draft"]["outlets"] == ["hotdraft_draft"]


def test_the_watch_calls_for_a_job_until_one_has_learned(
    airflow: Callable[..., dict[str, Any]], recorded: Path
) -> None:
    given = {"config": recorded.name, "folder": str(recorded.parent)}
    watched = airflow("hotdraft_acceptance_watch", **given)
    assert (watched["state"], watched["tasks"]["start_job"]) == ("success", "success")
    assert "newly missed tokens" in watched["events"]["hotdraft_job_due"]["reason"]

    distilled = airflow("hotdraft_distill", **given)
    assert distilled["state"] == "success"
    assert set(distilled["tasks"].values()) == {"success"}
    event = distilled["events"]["hotdraft_champion"]
    assert event["version"] == AdapterRegistry(load_config(recorded)).champion() == 1
    assert event["run_id"]

    watched = airflow("hotdraft_acceptance_watch", **given)
    assert (watched["state"], watched["tasks"]["start_job"], watched["events"]) == ("success", "skipped", {})
    again = airflow("hotdraft_distill", **given)
    assert (again["state"], again["tasks"]["job"], again["events"]) == ("success", "skipped", {})


def test_a_rejected_candidate_is_no_failure_and_no_champion(
    airflow: Callable[..., dict[str, Any]],
    recorded: Path,
    write_config: Callable[..., Path],
    tmp_path: Path,
) -> None:
    config = write_config(tmp_path, gate={"min_gain": 0.9})
    shutil.copytree(recorded.parent / "run" / "replay", tmp_path / "run" / "replay")
    done = airflow("hotdraft_distill", config=str(config), folder=str(tmp_path))
    assert (done["state"], done["tasks"]["job"], done["tasks"]["champion"]) == ("success", "success", "skipped")
    assert done["events"] == {}
    assert AdapterRegistry(load_config(config)).champion() == 0


def test_a_draft_is_made(
    airflow: Callable[..., dict[str, Any]], write_config: Callable[..., Path], tmp_path: Path
) -> None:
    write_config(tmp_path, predistill=PREDISTILL)
    lines = [json.dumps({"domain": "count", "prompt": f"Count to {n}."}) for n in range(60)]
    (tmp_path / "some prompts.jsonl").write_text("\n".join(lines) + "\n")
    done = airflow(
        "hotdraft_predistill",
        config="config.yaml",
        folder=str(tmp_path),
        out="a draft",
        prompts=["some prompts.jsonl"],
        slim=True,
    )
    assert done["state"] == "success"
    assert done["events"] == {"hotdraft_draft": {"folder": str(tmp_path / "a draft")}}
    assert (tmp_path / "a draft" / "cut.json").is_file(), "slim"
