"""`hotdraft gpu-check` as it runs on a GPU, on a processor with a tiny pair."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hotdraft.gpu_check.steps import STEPS
from hotdraft.pipeline.models.loading import choose_dtype
from tests.integration.warm.start import run

COMMAND = [sys.executable, "-m", "hotdraft", "gpu-check"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_steps_are_green_and_say_what_they_found(tmp_path: Path) -> None:
    told = ["--device", "cpu", "--random", "--minutes", "14", "--out", str(tmp_path / "out")]
    done = run([*COMMAND, *told], timeout=880)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "out" / "gpu-check.json").read_text())
    found = report["steps"]
    assert {name: (result["state"], result["says"]) for name, result in found.items()} == {
        step.name: ("ok", []) for step in STEPS
    }
    lossless = found["lossless"]["figures"]
    for k in (0, 1, 4):
        alone, together = (f"k = {k}, {rows} at once" for rows in (1, 8))
        assert lossless[alone].startswith("8 of 8")
        assert lossless[together].startswith("8 of 8")
        assert lossless[f"{alone}, tokens a round"] == lossless[f"{together}, tokens a round"]
    for way in ("greedy", "drawn"):
        assert found["rounds"]["figures"][f"8 at once, {way}, same with graphs"] == "8 of 8"
    batches = found["batches"]["figures"]
    speculating, plain = (batches[f"8 at once, hotdraft {mode}, greedy"] for mode in ("k=auto", "plain"))
    assert speculating == plain
    if choose_dtype("auto", torch.device("cpu")) == torch.float32:  # bfloat16 rounds otherwise than transformers'
        assert plain == "8 of 8"
    assert found["training"]["figures"]["steps"] == 10
    assert 0 < found["sharing"]["figures"]["share that is left"] < 1.5
    table = (tmp_path / "out" / "gpu-check.md").read_text()
    assert all(f"| {step.name} | ok |" in table for step in STEPS)


def test_what_cannot_be_done_is_one_line() -> None:
    for told, says in (
        (["--device", "cuda"], "torch sees no CUDA device"),
        (["--device", "cpu", "--to", "x"], "'x' is no size"),
    ):
        command = [*COMMAND, "--out", "unused", *told]
        environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # where there is a GPU it would begin
        done = subprocess.run(command, capture_output=True, text=True, env=environ)
        assert (done.returncode, says in done.stderr) == (2, True), done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
        assert not Path("unused").exists()
