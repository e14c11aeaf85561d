"""A pre-distillation that is killed at any moment ends as if it had not been.

Its curves may lack the point of the very step after whose checkpoint it was killed: a step is saved, then told.
"""

import random
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from hotdraft.training.fit import run
from tests.integration.predistill.tiny_run import command, curve, train_in
from tests.integration.processes import wait_for
from tests.integration.warm.start import start

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {
    "max_steps": 60, "batch_tokens": 64, "accumulate": 2, "learning_rate": 1e-2, "warmup_steps": 5,
    "validation_steps": 9, "validation_requests": 6, "checkpoint_steps": 4, "activation_checkpointing": True,
}  # fmt: skip
KILLS = 2
START_SECONDS = 120.0


def written(path: Path) -> int:
    """When, in nanoseconds; 0 is never."""
    return path.stat().st_mtime_ns if path.exists() else 0


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_killed_runs_go_on_exactly(tmp_path, empty_mlflow_db, monkeypatch):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
        shutil.copy(empty_mlflow_db, folder)
    monkeypatch.setattr(run, "LOG_EVERY_STEPS", 1)
    train_in(whole, SETTINGS)
    assert list(curve(whole, "loss")) == list(range(60))

    checkpoint = broken / "checkpoints" / "last.ckpt"
    pause = random.Random(0)
    cut_off: set[int] = set()
    for _ in range(KILLS):
        before = written(checkpoint)
        process = start(command(broken, SETTINGS), stdout=subprocess.DEVNULL)
        wait_for("a checkpoint", lambda before=before: written(checkpoint) > before, START_SECONDS)
        time.sleep(pause.uniform(0.0, 0.3))
        process.kill()
        assert process.wait() == -9, "ended before it could be killed"
        saved = torch.load(checkpoint, weights_only=False)["global_step"]
        cut_off |= {saved - 1, saved}  # the loss, and a validation after it
    train_in(broken, SETTINGS)

    for name in ("loss", "validation/overlap", "validation/loss"):
        found, truth = curve(broken, name), curve(whole, name)
        assert set(found) <= set(truth), name
        assert set(truth) - set(found) <= cut_off, name
        for step, values in found.items():
            expected = pytest.approx([truth[step][0]] * len(values), rel=1e-5)
            assert values == expected, f"{name} at {step}"
    first, second = (torch.load(folder / "trained.pt") for folder in (whole, broken))
    assert first["metrics"]["best_step"] == second["metrics"]["best_step"]
    for weight, tensor in first["weights"].items():
        torch.testing.assert_close(second["weights"][weight], tensor, msg=weight)
