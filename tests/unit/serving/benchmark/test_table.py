"""What people paste is whole in a terminal of 80 columns."""

import copy
import json
from pathlib import Path

import pytest
from rich.console import Console

from hotdraft.serving.benchmark.figures.table import label, tables

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
HEADINGS = (
    *("engine", "at", "once", "tokens/s", "over", "own", "plain", "transformers", "TTFT", "TPOT", "p50/p99"),
    *("accepted", "length", "greedy", "drafted", "round", "draft", "step", "predicted", "achieved", "efficiency"),
)


def rendered(report: dict, width: int, capsys: pytest.CaptureFixture[str]) -> list[str]:
    Console(width=width).print(tables(report))
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


@pytest.fixture(params=["cpu-single", "cpu-many", "cpu-float32"])
def report(request: pytest.FixtureRequest) -> dict:
    report: dict = json.loads((RESULTS / f"{request.param}.json").read_text())
    report["environment"].setdefault("inflated", {})
    return report


def test_80_columns_hold_names_headings_and_figures_whole(report: dict, capsys: pytest.CaptureFixture[str]) -> None:
    narrow = rendered(report, 80, capsys)
    assert max(map(len, narrow)) <= 80
    text = "\n".join(narrow)
    assert "…" not in text
    assert {word for word in HEADINGS if word not in text.split()} == set()
    for row in report["rows"]:
        if row["shown"]:
            lines = [line for line in narrow if line.startswith(f"{label(row)} ")]
            assert len(lines) >= 2, "in the table of speeds and in that of latencies"
    tables_only = [line for line in narrow if line.startswith(tuple(map(label, report["rows"])))]
    wide = rendered(report, 200, capsys)
    assert all(line in wide for line in tables_only), "no cell is broken for want of room"


def test_figures_of_a_fast_machine_fit_too(report: dict, capsys: pytest.CaptureFixture[str]) -> None:
    fast = copy.deepcopy(report)
    for row in fast["rows"]:
        row["tokens_per_second"] = {"median": 12345.6, "low": 12000.1, "high": 13000.9}
        row["time_to_first_token"] = row["time_per_output_token"] = {"p50": 1234.5, "p99": 9876.5}
        row["equality"] |= {"equal": 16, "outputs": 16, "largest_divergence_margin": 0.125}
    lines = rendered(fast, 80, capsys)
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    for whole in (
        "12346",
        "12000-13001",
        "1234/9876",
        "(0.125)",
        *(label(row) for row in fast["rows"] if row["shown"]),
    ):
        assert any(whole in line for line in lines), whole
