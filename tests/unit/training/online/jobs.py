"""What tests of jobs do to them, and find of them."""

import shutil

import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.fit.resume import JobInterruptedError
from hotdraft.training.online.job import run_job
from hotdraft.training.online.unfinished import unfinished
from tests.models import disturbed


def job_config(folder, target, empty_mlflow_db):
    """Of a run in `folder`, whose store is empty, for a draft that has much to learn of `target`."""
    (folder / "run").mkdir()
    shutil.copy(empty_mlflow_db, folder / "run")
    disturbed(target).save_pretrained(folder / "draft")
    return HotdraftConfig(
        target="unused",
        draft=str(folder / "draft"),
        dtype="float32",
        device="cpu",
        run_dir=folder / "run",
        replay={"held_out_fraction": 0.3},
        distill={
            "lora": {"rank": 4, "alpha": 8}, "learning_rate": 1e-2, "max_steps": 40, "batch_tokens": 256,
            "threads": 1,
        },
        gate={"min_requests": 4},
    )  # fmt: skip


class StopAfter:
    """Says stop at the n-th time it is asked: thrice before training, then once a step."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def is_set(self) -> bool:
        self.left -= 1
        return self.left <= 0


class Meanwhile(StopAfter):
    """Never says stop; does something at the n-th time it is asked."""

    def __init__(self, steps: int, act) -> None:
        super().__init__(steps)
        self.act = act

    def is_set(self) -> bool:
        if super().is_set() and self.act is not None:
            self.act, act = None, self.act
            act()
        return False


def with_distill(config, **values):
    return config.model_copy(update={"distill": config.distill.model_copy(update=values)})


def left(config):
    """The job that the next one goes on with."""
    return unfinished(JobRecords(config.run_dir), config)


def folders(config):
    return {path.name for path in (config.run_dir / "jobs").glob("????????-??????-??????")}


def interrupted(config, buffer):
    """What a job leaves that is stopped before it trains."""
    with pytest.raises(JobInterruptedError):
        run_job(config, buffer=buffer, registry=AdapterRegistry(config), stop=StopAfter(1))
    return left(config)
