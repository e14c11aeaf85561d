"""`hotdraft simulate` as a user runs it: it starts a server, plays two files and writes report and picture."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib.image
import pytest

from hotdraft.pipeline.config.settings import load_config
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.traffic.prompts import ask, write_traffic
from tests.integration.warm.start import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

KEYS = {
    "requests", "failed_requests", "swaps", "adapters_rejected", "k", "speedup", "tokens",
    "tokens_per_second",
    "acceptance_rate_first", "acceptance_rate_last", "by_domain", "windows", "wall_seconds", "interrupted",
}  # fmt: skip
WINDOW_KEYS = {"request", "domain", "acceptance_rate", "mean_acceptance_length", "draft_version"}


def test_two_files_through_a_server_of_its_own(write_config: Callable[..., Path], tmp_path: Path) -> None:
    config = write_config(tmp_path)
    sums = [ask("sums", f"{n} + {n + 1} =") for n in range(24)]
    colours = [ask("colours", f"colour number {n}") for n in range(24)]
    write_traffic(tmp_path / "sums.jsonl", sums)
    write_traffic(tmp_path / "colours.jsonl", colours)
    out = tmp_path / "out"
    command = [
        sys.executable, "-m", "hotdraft", "simulate", "--config", config, "--out", out, "--concurrency", 4,
        "--traffic", tmp_path / "sums.jsonl", "--traffic", tmp_path / "colours.jsonl", "--max-tokens", 20,
        "--limit", 20,
    ]  # fmt: skip
    done = run(list(map(str, command)), timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr

    report = json.loads((out / "report.json").read_text())
    assert report.keys() == KEYS
    assert (report["requests"], report["failed_requests"], report["k"]) == (40, 0, 3)
    assert report["speedup"] > 0
    assert 40 <= report["tokens"] <= 40 * 20
    assert report["tokens_per_second"] == pytest.approx(report["tokens"] / report["wall_seconds"])
    requests = {name: figures["requests"] for name, figures in report["by_domain"].items()}
    assert requests == {"sums": 20, "colours": 20}
    last = report["by_domain"]["colours"]
    for key in ("acceptance_rate_first", "acceptance_rate_last"):
        assert report[key] == last[key]
        assert 0 <= report[key] <= 1
    assert [window["request"] for window in report["windows"]] == [10, 20, 30, 40]
    assert all(window.keys() == WINDOW_KEYS for window in report["windows"])
    assert matplotlib.image.imread(out / "acceptance.png")[..., :3].std() > 0.05

    settings = load_config(config)
    assert ReplayBuffer(settings.replay_url).stats().requests == 40, "the server wrote the rest before it ended"
    assert "mlflow ui --backend-store-uri" in done.stdout
    assert (settings.run_dir / "trainer.log").is_file()
