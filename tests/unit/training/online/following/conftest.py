"""A trainer that looks often, and jobs that end as a test says."""

import shutil
from types import SimpleNamespace

import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.store.connection import StoreError
from hotdraft.training.online import follow as follow_module


@pytest.fixture
def config(tmp_path, empty_mlflow_db):
    shutil.copy(empty_mlflow_db, tmp_path)
    return HotdraftConfig(
        target="t",
        draft="d",
        run_dir=tmp_path,
        replay={"held_out_fraction": 0.3},
        gate={"min_requests": 2},
        distill={"trigger": {"min_new_requests": 5, "min_new_rejected": 5, "poll_seconds": 0.01}},
    )


@pytest.fixture
def jobs(monkeypatch):
    """Calls of `run_job`, each ending as the list `outcomes` says."""
    calls = SimpleNamespace(count=0, outcome=None, outages=0, meanwhile=lambda: None)

    def run_job(config, *, job, **kwargs):
        calls.count += 1
        with job:
            if calls.outages:
                calls.outages -= 1
                raise StoreError("the store is away")
            if calls.outcome is not None:
                raise calls.outcome
            calls.meanwhile()
            job.end("accepted", "better", version=1, promoted=True)
        return SimpleNamespace(promoted=True)

    monkeypatch.setattr(follow_module, "run_job", run_job)
    return calls
