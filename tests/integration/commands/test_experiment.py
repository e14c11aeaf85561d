"""`hotdraft experiment` on a pair that learns within seconds: policies side by side, and a run gone on with."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from hotdraft.cli import app

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

POLICIES = {
    "static": {"distill": {"trigger": {"min_new_requests": 100_000}}},
    "learning": {"distill": {"trigger": {"min_new_requests": 28, "min_new_rejected": 1}}},
}


@pytest.fixture
def config(write_config: Callable[..., Path], tmp_path: Path) -> Path:
    ceilings = {"long": {"distill": {"max_steps": 60}}}
    section = {
        "ceilings": ceilings,
        "seeds": [0],
        "probes": 6,
        "max_tokens": 24,
        "policies": POLICIES,
        "baseline": "static",
    }
    section |= {"requests_per_step": 0.1}  # some are left for the version that a job makes
    return write_config(tmp_path, experiment=section)


@pytest.fixture
def traffic(tmp_path: Path) -> Path:
    path = tmp_path / "traffic.jsonl"
    lines = [json.dumps({"domain": "count", "prompt": f"alpha {n}"}) for n in range(70)]
    path.write_text("\n".join(lines) + "\n")
    return path


def experiment(config: Path, out: Path, *arguments: object) -> Result:
    command = ["experiment", "--config", config, "--out", out, *arguments]
    return CliRunner().invoke(app, [str(argument) for argument in command])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_policies_side_by_side_and_again_without_playing(config: Path, traffic: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = experiment(config, out, "--traffic", traffic)
    assert first.exit_code == 0, first.output
    assert "times the area under the acceptance curve of static" in first.output
    assert "that could be reached" in first.output
    reached = json.loads((out / "results" / "long-0.json").read_text())
    assert (out / "acceptance.png").read_bytes().startswith(b"\x89PNG")
    results = {name: json.loads((out / "results" / f"{name}-0.json").read_text()) for name in POLICIES}
    assert all(len(result["served"]) == 64 for result in results.values())
    assert not results["static"]["jobs"]
    assert any(job["accepted"] for job in results["learning"]["jobs"])
    assert {request["draft_version"] for request in results["learning"]["served"]} > {0}
    assert results["learning"]["probes_after"]["count"] > results["static"]["probes_after"]["count"]
    assert reached["probes"]["count"] > results["static"]["probes_after"]["count"]
    assert results["learning"]["swaps"][-1]["probes"] == results["learning"]["probes_after"]

    made = {path: path.stat().st_mtime_ns for path in (out / "results").iterdir()}
    again = experiment(config, out, "--traffic", traffic)
    assert again.exit_code == 0, again.output
    assert {path: path.stat().st_mtime_ns for path in (out / "results").iterdir()} == made

    settings = yaml.safe_load(config.read_text())
    settings["experiment"] |= {"k": 1, "ceilings": {}}
    config.write_text(yaml.safe_dump(settings))
    assert experiment(config, out, "--traffic", traffic, "--policy", "static").exit_code == 0
    changed = {path.name for path, time in made.items() if path.stat().st_mtime_ns != time}
    assert changed == {"static-0.json"}, "what was played under other settings is no result"


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_streams_played_one_by_one_keep_their_results_apart(config: Path, traffic: Path, tmp_path: Path) -> None:
    settings = yaml.safe_load(config.read_text())
    streams = {name: [{"of": {str(traffic): 1}, "requests": 4 + i}] for i, name in enumerate(("early", "late"))}
    settings["experiment"] |= {"ceilings": {}, "streams": streams, "max_tokens": 8}
    config.write_text(yaml.safe_dump(settings))
    for name in streams:
        played = experiment(config, tmp_path / "out", "--stream", name, "--policy", "static")
        assert played.exit_code == 0, played.output
    kept = {path.relative_to(tmp_path / "out").parts[0] for path in (tmp_path / "out").glob("*/results/*.json")}
    assert kept == {*streams}


def test_what_cannot_be_played_is_named(config: Path, traffic: Path, tmp_path: Path) -> None:
    unknown = experiment(config, tmp_path / "out", "--policy", "bold")
    assert unknown.exit_code == 2
    assert "experiment.policies has ['learning', 'static'], not ['bold']" in " ".join(unknown.output.split())
    unknown = experiment(config, tmp_path / "out", "--stream", "sideways")
    assert "experiment.streams has ['shift'], not ['sideways']" in " ".join(unknown.output.split())
    unknown = experiment(config, tmp_path / "out", "--suite", "drift")
    assert "there is no suite drift" in str(unknown.exception)
    traffic.write_text("\n".join(traffic.read_text().splitlines()[:6]) + "\n")
    few = experiment(config, tmp_path / "out", "--traffic", traffic)
    assert "6 prompts of its own, and experiment.probes keeps 6 of them apart" in str(few.exception)
    settings = yaml.safe_load(config.read_text())
    settings["experiment"]["policies"] = {}
    config.write_text(yaml.safe_dump(settings))
    none = experiment(config, tmp_path / "out")
    assert "experiment.policies names none to play" in " ".join(none.output.split())
    assert not (tmp_path / "out").exists()
