"""A job on a tiny pair: the draft is to learn a random target's true distributions."""

import itertools

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from hotdraft.pipeline.replay.buffer import ReplayBuffer
from tests.unit.training.online.jobs import job_config


@pytest.fixture
def target(make_llama):
    return make_llama(1, layers=1, scale=0.3)


@pytest.fixture
def config(target, tmp_path, empty_mlflow_db):
    return job_config(tmp_path, target, empty_mlflow_db)


@pytest.fixture
def buffer(config, target, serve):
    buffer = ReplayBuffer(config.replay_url)
    buffer.append(serve(target, 40))
    return buffer


class Store:
    """Refuses the n-th call of a method of its clients, and all calls after it, until it is back."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def goes_away(self, method: str, call: int = 1) -> None:
        real, calls = getattr(MlflowClient, method), itertools.count(1)

        def refuse(client, *args, **kwargs):
            if next(calls) >= call:
                raise MlflowException("no route to the store")
            return real(client, *args, **kwargs)

        self._patch.setattr(MlflowClient, method, refuse)

    def is_back(self) -> None:
        self._patch.undo()


@pytest.fixture
def store():
    with pytest.MonkeyPatch.context() as patch:
        yield Store(patch)
