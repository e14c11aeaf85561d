"""`hotdraft bench` as a user runs it, on a tiny pair in float32, where all engines must say the same."""

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hotdraft.cli import app
from hotdraft.pipeline.traffic.prompts import ask, write_traffic
from hotdraft.serving.benchmark.engines.engine import DRAFTED_TOKENS
from hotdraft.serving.benchmark.plan import BenchError
from tests.integration.warm.start import run

TOKENS = 8
PROMPTS = 3


@pytest.mark.slow
def test_engines_side_by_side(write_config: Callable[..., Path], tmp_path: Path) -> None:
    write_traffic(tmp_path / "traffic.jsonl", [ask("test", f"count to {n}") for n in range(PROMPTS)])
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # it has no llama.cpp, wherever this test runs
    bare.chmod(0o755)
    config = write_config(tmp_path, engine={"k": "auto"})
    command = [
        *(sys.executable, "-m", "hotdraft", "bench", "--config", config, "--threads", "1"),
        *("--against", "transformers,transformers-assisted,llamacpp", "--concurrency", "1,2"),
        *("--traffic", tmp_path / "traffic.jsonl", "--prompts", str(PROMPTS), "--max-tokens", str(TOKENS)),
        *("--repeats", "1", "--overhead", "--swap"),
        *("--json", tmp_path / "report.json", "--chart", tmp_path / "chart.png"),
    ]
    environ = {**os.environ, "HOTDRAFT_BENCH_PYTHON_LLAMACPP": str(bare), "COLUMNS": "200"}
    done = run(list(map(str, command)), env=environ)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "left out: llamacpp: needs the package 'xllamacpp'" in done.stdout
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")

    report = json.loads((tmp_path / "report.json").read_text())
    found = {
        (row["engine"], row["concurrency"], row["mode"]["k"]): row
        for row in report["rows"]
        if not row["mode"]["recording"]
    }
    assert set(found) == {
        *(("hotdraft", concurrency, k) for concurrency in (1, 2) for k in (None, "auto")),
        *(("transformers", concurrency, None) for concurrency in (1, 2)),
        *(("transformers", 1, k) for k in DRAFTED_TOKENS),
    }
    for row in report["rows"]:
        assert row["equality"]["equal"] == row["equality"]["outputs"] == PROMPTS, row
        assert row["tokens_per_second"]["median"] > 0
        assert row["time_to_first_token"]["p50"] > 0
    assert found["transformers", 1, None]["over_transformers"]["median"] == 1
    for k in DRAFTED_TOKENS:
        assisted = found["transformers", 1, k]
        accepted = assisted["acceptance_rate"] * assisted["drafted_per_round"]
        assert assisted["mean_acceptance_length"] == pytest.approx(1 + accepted)
        assert assisted["drafted_per_round"] <= k
    ours = report["hotdraft"]
    assert [item["concurrency"] for item in ours["speculation"]] == [1, 2]
    assert all(item["plain_round_ms"] > 0 for item in ours["speculation"])
    assert set(ours["recording_overhead_percent"]) == {"1", "2"}
    assert ours["swap"]["worst_gap_swapping_seconds"] >= ours["swap"]["worst_stall_seconds"]
    assert report["environment"]["max_tokens"] == TOKENS
    assert re.search(r"\(target by .* float32 weights, draft by .* weights\)", report["versions"]["hotdraft"])


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--against", "vllm"], r"unknown engines \['vllm'\]; allowed are \['transformers', "),
        (["--concurrency", "1,4", "--prompts", "2"], "4 requests at once need as many prompts, not 2"),
        (["--concurrency", "0"], "whole numbers from 1"),
        (["--max-tokens", "300"], "above engine.max_model_len"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    write_config: Callable[..., Path], tmp_path: Path, option: list[str], message: str
) -> None:
    config = write_config(tmp_path)
    with pytest.raises(BenchError, match=message):
        CliRunner().invoke(app, ["bench", "--config", str(config), *option], catch_exceptions=False)


def test_a_file_of_fewer_prompts_than_are_to_run_at_once_is_refused(
    write_config: Callable[..., Path], tmp_path: Path
) -> None:
    traffic = tmp_path / "two.jsonl"
    traffic.write_text('{"domain": "d", "prompt": "alpha"}\n' * 2)
    told = ["bench", "--config", str(write_config(tmp_path)), "--traffic", str(traffic), "--concurrency", "4"]
    with pytest.raises(BenchError, match="4 requests at once need as many prompts, not 2"):
        CliRunner().invoke(app, told, catch_exceptions=False)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (["--json", "missing/x.json"], "cannot be written: No such file or directory"),
        (["--json", "."], "cannot be written: Is a directory"),
        (["--json", f"{'x' * 300}.json"], "cannot be written: File name too long"),
        (["--chart", "missing/x.png"], "cannot be written: No such file or directory"),
        (["--chart", "x.docx"], "is none of the kinds that can be drawn: avif, eps, "),
        (["--threads", "1025"], "'--threads': Input should be less than or equal to 1024"),
    ],
)
def test_what_would_fail_at_the_end_is_not_measured(
    write_config: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    option: list[str],
    says: str,
) -> None:
    measured = lambda *_: pytest.fail("measured")  # noqa: E731
    monkeypatch.setattr("hotdraft.serving.benchmark.benchmark.measure", measured)
    monkeypatch.setenv("COLUMNS", "600")
    config = write_config(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    result = CliRunner().invoke(app, ["bench", "--config", str(config), *option])
    assert (result.exit_code, says in result.output) == (2, True), result.output
    assert sorted(tmp_path.iterdir()) == before


def test_a_report_that_was_there_is_left_until_there_is_another(
    write_config: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "x.json").write_text("{}")
    told = ["bench", "--config", str(write_config(tmp_path)), "--json", str(tmp_path / "x.json")]
    CliRunner().invoke(app, [*told, "--concurrency", "0"])
    assert (tmp_path / "x.json").read_text() == "{}"
