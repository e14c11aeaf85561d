"""What a job tells of its training."""

from types import SimpleNamespace

from hotdraft.pipeline.loop.job_progress import JobProgress
from hotdraft.training.fit.progress_bar import ToldProgress


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
