"""A step is tried before a long recording, in place of the processes that would take it in this one."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.training.fit.processes import DeviceError, TrainingProcessError
from hotdraft.training.planning.machine import available_for
from hotdraft.training.planning.plan_check import PlanError
from hotdraft.training.planning.plan_table import plan_predistill
from hotdraft.training.predistill import step_trial
from hotdraft.training.predistill.step_trial import peak_bytes, try_step
from hotdraft.training.predistill.train_draft import trainable
from hotdraft.training.scoring.target_scores import ScoredText

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture
def plan_of(tiny_target: str, tmp_path: Path):
    def make(**predistill):
        settings = {"layers": 1, "batch_tokens": 128, "accumulate": 2, "validation_requests": 4} | predistill
        run_dir = tmp_path / "not" / "there"
        return plan_predistill(
            HotdraftConfig(target=tiny_target, device="cpu", run_dir=run_dir, predistill=settings, dtype="float32")
        )

    return make


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """What was to be learned from by each step that was tried, in this process."""
    tried = []

    def here(draft, settings, fit, checkpoints, device):
        data = fit.keywords["data"]
        batch = next(iter(data.train_dataloader()))
        tried.append({"tokens": batch.input_ids.numel(), "settings": settings, "device": device})
        return fit(trainable(draft, settings), draft.dtype)

    monkeypatch.setattr(step_trial, "fit_in_processes", here)
    return tried


def texts(count: int, tokens: int = 40) -> list[ScoredText]:
    ids = np.arange(tokens, dtype=np.int32)
    return [ScoredText(f"r{index}", "d", 1.0, ids[:8], ids[8:]) for index in range(count)]


def test_two_steps_of_full_batches_are_taken_and_nothing_is_left(plan_of, fits, tmp_path):
    plan = plan_of(method="lora")
    step = try_step(plan, available_for(plan.run.config), texts(9))
    [tried] = fits
    assert tried["tokens"] == 3 * 39
    assert (tried["settings"].max_steps, tried["settings"].accumulate) == (2, 2)
    assert step.tokens_per_second > 0
    assert 50e6 < step.peak < 50e9
    assert not (tmp_path / "not").exists()
    assert not list(tmp_path.glob("hotdraft-trial-*"))


def test_a_step_beyond_the_machine_ends_the_run(plan_of, fits, monkeypatch):
    monkeypatch.setattr(step_trial, "peak_bytes", lambda device: 10**15)
    plan = plan_of()
    with pytest.raises(
        PlanError, match=r"a step of training was tried and took 1000000\.\d GB, of .* can be filled"
    ):
        try_step(plan, available_for(plan.run.config), texts(9))


@pytest.mark.parametrize(
    "told", ["OutOfMemoryError: CUDA out of memory. Tried to allocate", "process 0 terminated with signal SIGKILL"]
)
def test_memory_that_runs_out_ends_the_run(plan_of, monkeypatch, told):
    def out_of_memory(*_):
        raise TrainingProcessError(told)

    monkeypatch.setattr(step_trial, "fit_in_processes", out_of_memory)
    plan = plan_of(batch_tokens=1024)
    with pytest.raises(PlanError, match=r"took more than there is, .*nothing that can be set"):
        try_step(plan, available_for(plan.run.config), texts(40))


def test_another_failure_is_told_as_it_is(plan_of, monkeypatch):
    def fails(*_):
        raise TrainingProcessError("NonFiniteLossError: the loss is nan")

    monkeypatch.setattr(step_trial, "fit_in_processes", fails)
    plan = plan_of()
    with pytest.raises(TrainingProcessError, match="the loss is nan"):
        try_step(plan, available_for(plan.run.config), texts(4))


def test_devices_are_checked_first(plan_of, fits):
    plan = plan_of(devices=2, strategy="fsdp", method="qlora")
    with pytest.raises(DeviceError, match="NF4"):
        try_step(plan, available_for(plan.run.config), texts(4))
    assert not fits


def test_the_peak_is_this_processs_own(monkeypatch):
    Path("/proc/self/clear_refs").write_text("5")  # from here on it is what is held now
    before = peak_bytes(torch.device("cpu"))
    held = torch.ones(50_000_000)
    assert peak_bytes(torch.device("cpu")) > before + 100_000_000
    assert len(held)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 7)
    assert peak_bytes(torch.device("cuda", 0)) == 7
