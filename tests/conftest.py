"""Tiny random models on disk, as a user would name them in a configuration.

What is heavy is imported where it is used: the process that hands out tests needs none of it.
"""

import gc
import os
import random
from collections.abc import Generator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start, beside those of another worker


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What imports make is no garbage: it is not searched for any, neither as it grows nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # what is left when Python ends some libraries call a leak


@pytest.fixture(autouse=True)
def _alike() -> None:
    """Every test draws what it drew before, whatever ran ahead of it, and computes in one thread."""
    import torch

    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> str:
    from tests.models import save, tiny_llama

    return save(tiny_llama(layers=3, seed=1), tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def tiny_draft(tmp_path_factory: pytest.TempPathFactory) -> str:
    from tests.models import save, tiny_llama

    return save(tiny_llama(layers=1, seed=2), tmp_path_factory.mktemp("draft"))


@pytest.fixture(scope="session")
def tiny_neox_target(tmp_path_factory: pytest.TempPathFactory) -> str:
    from tests.models import save, tiny_neox

    return save(tiny_neox(layers=2, seed=3), tmp_path_factory.mktemp("neox"))


@pytest.fixture(scope="session")
def empty_mlflow_db(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A migrated SQLite store to copy, one for all workers: making it takes seconds."""
    from hotdraft.pipeline.config.settings import HotdraftConfig
    from hotdraft.pipeline.store.connection import open_client

    folder = tmp_path_factory.getbasetemp()
    run_dir = (folder if worker_id == "master" else folder.parent) / "mlflow"
    open_client(HotdraftConfig(target="tiny", run_dir=run_dir))
    return run_dir / "mlflow.db"
