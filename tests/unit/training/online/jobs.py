"""What tests of jobs do to them, and find of them."""

import pytest

from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.fit.resume import JobInterruptedError
from hotdraft.training.online.job import run_job
from hotdraft.training.online.unfinished import unfinished


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
