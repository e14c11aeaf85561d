"""Two processes that share the work learn what one does alone."""

import multiprocessing
import shutil
import subprocess
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.training.fit import processes
from hotdraft.training.fit.processes import TrainingProcessError
from hotdraft.training.planning.machine import Available, available_for
from hotdraft.training.planning.plan_check import PlanError
from hotdraft.training.planning.plan_table import plan_predistill
from hotdraft.training.predistill.step_trial import try_step
from hotdraft.training.scoring.target_scores import ScoredText
from tests.integration.predistill.tiny_run import command, curve, train_in
from tests.integration.processes import is_running, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]

SETTINGS: dict[str, Any] = {
    "max_steps": 20, "batch_tokens": 64, "learning_rate": 1e-2, "warmup_steps": 2, "validation_steps": 12,
    "validation_requests": 6, "checkpoint_steps": 5, "lora": {"rank": 4, "alpha": 8},
}  # fmt: skip
START_SECONDS = 120.0


@pytest.fixture
def folder_for(tmp_path, empty_mlflow_db):
    def make(name):
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(empty_mlflow_db, folder)
        return folder

    return make


@pytest.fixture
def forked(monkeypatch):
    """Training processes that are forked from one that has made their imports; alike in all else."""
    multiprocessing.set_forkserver_preload(
        ["hotdraft.training.predistill.make", "lightning.pytorch", "tests.models"]
    )
    method = "forkserver"
    changed = SimpleNamespace(
        get_context=lambda _: multiprocessing.get_context(method),
        spawn=partial(torch.multiprocessing.start_processes, start_method=method),
    )
    monkeypatch.setattr(processes, "multiprocessing", changed)


def assert_same(first, second):
    for name in ("loss", "validation/loss", "validation/overlap", "validation/greedy_agreement"):
        truth, found = curve(first, name), curve(second, name)
        assert len(truth) > 1
        assert set(found) == set(truth), name
        for step, (value, *_) in truth.items():
            assert found[step][-1] == pytest.approx(value, rel=1e-3), f"{name} at {step}"
    weights = [torch.load(folder / "trained.pt")["weights"] for folder in (first, second)]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, msg=name, rtol=1e-2, atol=1e-3)


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        ("ddp", {}),
        ("ddp", {"method": "qlora", "accumulate": 2}),
        ("fsdp", {"activation_checkpointing": True}),
        ("fsdp", {"method": "lora", "accumulate": 2}),
    ],
)
def test_two_processes_take_the_steps_of_one_with_twice_the_batches(folder_for, strategy, changes):
    alone, shared = folder_for("alone"), folder_for("shared")
    train_in(alone, SETTINGS | changes | {"accumulate": 2 * changes.get("accumulate", 1)})
    train_in(shared, SETTINGS | changes | {"devices": 2, "strategy": strategy})
    assert_same(alone, shared)
    artifacts = sorted(path.name for path in (shared / "artifacts").rglob("step-*.txt"))
    assert artifacts == ["step-0000012.txt", "step-0000020.txt"]


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_try_a_step_together(tiny_target, tmp_path, strategy):
    settings = {"layers": 1, "batch_tokens": 64, "devices": 2, "strategy": strategy}
    config = HotdraftConfig(
        target=tiny_target, device="cpu", dtype="float32", run_dir=tmp_path, predistill=settings
    )
    plan = plan_predistill(config)
    ids = np.arange(32, dtype=np.int32)
    texts = [ScoredText(f"r{index}", "d", 1.0, ids[:8], ids[8:]) for index in range(4)]
    step = try_step(plan, available_for(config), texts)
    assert step.tokens_per_second > 0
    assert 50e6 < step.peak < 5e9
    with pytest.raises(PlanError, match="a step of training was tried and took"):
        try_step(plan, Available(2 * step.peak, None, "a machine for one"), texts)
    assert not list(tmp_path.iterdir())


def children(pid: int) -> list[int]:
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for text in lists for child in text.read_text().split()]


@pytest.mark.usefixtures("forked")  # but not what is killed, which starts as a user starts it
def test_killed_processes_leave_none_behind_and_go_on_where_they_were(folder_for):
    whole, broken = folder_for("whole"), folder_for("broken")
    settings = SETTINGS | {"max_steps": 40, "devices": 2, "strategy": "fsdp"}
    train_in(whole, settings)
    process = subprocess.Popen(command(broken, settings), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for("a checkpoint", (broken / "checkpoints" / "last.ckpt").exists, START_SECONDS)
    workers = children(process.pid)
    assert len(workers) >= 2
    process.kill()
    assert process.wait() == -9, "ended before it could be killed"
    wait_for("the end of its processes", lambda: not any(map(is_running, workers)), 10)
    train_in(broken, settings)
    assert_same(whole, broken)


@pytest.mark.usefixtures("forked")
def test_a_failure_in_one_process_ends_all_and_is_told(folder_for):
    with pytest.raises(TrainingProcessError, match="NonFiniteLossError: the loss is nan"):
        train_in(folder_for("failed"), SETTINGS | {"devices": 2, "learning_rate": 1e30})
