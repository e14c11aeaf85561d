"""What a job tells of its training."""

import math
from types import SimpleNamespace

import pytest
import torch

from hotdraft.pipeline.loop.job_progress import JobProgress
from hotdraft.training.fit import progress_bar
from hotdraft.training.fit.progress_bar import Throughput, ToldProgress


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(progress_bar, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_training_that_its_budget_ends_tells_that_no_time_is_left():
    told = []
    progress = ToldProgress(told.append, lambda: 60.0)
    trainer = SimpleNamespace(global_step=0, max_steps=480, callback_metrics={"loss": 0.5})
    progress.on_train_start(trainer)
    for trainer.global_step in range(1, 4):
        progress.on_train_batch_end(trainer)
    assert [(found.step, found.seconds_left > 0) for found in told] == [(1, True)], "about once a second"
    progress.on_train_end(trainer)
    assert told[1:] == [JobProgress(3, 480, 0.5, 0.0)]


def test_training_that_is_gone_on_with_has_what_is_left_of_its_budget():
    told = []
    progress = ToldProgress(told.append, lambda: 1e-6)
    trainer = SimpleNamespace(global_step=200, max_steps=480, callback_metrics={})
    progress.on_train_start(trainer)
    trainer.global_step = 201
    progress.on_train_batch_end(trainer)
    assert [found.seconds_left for found in told] == [1e-6]


def test_what_is_left_goes_by_the_speed_of_this_run_alone(clock):
    """Not by the steps of one that it goes on with."""
    told = []
    progress = ToldProgress(told.append, lambda: None)
    trainer = SimpleNamespace(global_step=200, max_steps=480, callback_metrics={"loss": torch.tensor(math.nan)})
    progress.on_train_start(trainer)
    progress.on_train_batch_end(trainer)
    assert not told, "of a step that takes more than one batch nothing is known before its last"
    for trainer.global_step in (210, 230):
        clock.now += trainer.global_step - 200
        progress.on_train_batch_end(trainer)
    assert told == [JobProgress(210, 480, None, 270.0), JobProgress(230, 480, None, 40 / 30 * 250)]
    clock.now += progress_bar.TELL_SECONDS / 2
    trainer.global_step = 231
    progress.on_train_batch_end(trainer)
    assert len(told) == 2, "about once a second"


def test_time_that_is_left_is_no_more_than_the_budgets_and_no_less_than_none(clock):
    told, budget = [], SimpleNamespace(left=5.0)
    progress = ToldProgress(told.append, lambda: budget.left)
    trainer = SimpleNamespace(global_step=0, max_steps=480, callback_metrics={})
    progress.on_train_start(trainer)
    for budget.left in (5.0, -1.0, 1e6):
        trainer.global_step += 10
        clock.now += 10
        progress.on_train_batch_end(trainer)
    assert [found.seconds_left for found in told] == [5.0, 0.0, 450.0]


def test_speed_is_that_of_all_processes_and_without_the_time_that_looking_takes(clock):
    logged = {}
    module = SimpleNamespace(log=lambda name, value, **_: logged.setdefault(name, []).append(value))
    trainer = SimpleNamespace(world_size=2, accumulate_grad_batches=3)
    batch = SimpleNamespace(input_ids=torch.zeros(1, 100))
    speed = Throughput(every_steps=2)
    assert math.isnan(speed.latest), "nothing was measured yet"
    clock.now += 50  # until all is loaded
    speed.on_train_start(trainer, module)
    for index in range(12):
        clock.now += 0.5 if index < 6 else 0.25
        speed.on_train_batch_end(trainer, module, None, batch, index)
        if index == 6:
            clock.now += 30
            speed.on_validation_end(trainer, module)
    assert logged == {"tokens_per_second": [6 * 200 / 3, 5 * 200 / 1.25]}
    assert speed.latest == 800
