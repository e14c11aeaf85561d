"""Training on several devices, as far as this process goes."""

from pathlib import Path
from typing import Any

import pytest
import torch

from hotdraft.pipeline.config.learning import PredistillConfig
from hotdraft.training.fit.processes import TrainingProcessError
from hotdraft.training.fit.run import RunPlace
from hotdraft.training.predistill import train_draft as module
from hotdraft.training.predistill.train_draft import train_draft


class OnGpu:
    """A draft, as far as it knows where it is."""

    dtype, device = torch.bfloat16, torch.device("cuda", 0)

    def cpu(self) -> "OnGpu":
        self.device = torch.device("cpu")
        return self


def test_the_first_device_is_left_to_the_process_that_trains_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    came: list[Any] = []

    def fit_in_processes(draft: Any, *told: Any) -> None:
        came.append((draft.device.type, told[-1].type))
        raise TrainingProcessError("as of a device that is too small")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: came.append("emptied"))
    monkeypatch.setattr(module, "fit_in_processes", fit_in_processes)
    place = RunPlace("sqlite://", None, tmp_path, progress=False)
    told: Any = OnGpu()
    with pytest.raises(TrainingProcessError):
        train_draft(told, told, PredistillConfig(devices=2), told, place)
    assert came == ["emptied", ("cpu", "cuda")]
