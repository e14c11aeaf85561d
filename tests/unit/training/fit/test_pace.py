from types import SimpleNamespace

import lightning
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from hotdraft.training.fit import pace
from hotdraft.training.fit.pace import Pace


class Clock:
    def __init__(self) -> None:
        self.now, self.slept = 0.0, []

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Work(lightning.LightningModule):
    """Steps of 1, 2 and 3 seconds."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.weight, self.clock = nn.Linear(1, 1), clock

    def training_step(self, batch, index):
        self.clock.now += 1 + index
        return self.weight(batch).sum()

    def configure_optimizers(self):
        return None


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_quarter_of_the_time_is_three_seconds_of_sleep_for_each_of_work(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(pace, "time", SimpleNamespace(perf_counter=clock.perf_counter, sleep=clock.sleep))
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[Pace(0.25)],
    )  # fmt: skip
    trainer.fit(Work(clock), DataLoader(torch.ones(3, 1)))
    assert clock.slept == pytest.approx([3.0, 6.0, 9.0])
