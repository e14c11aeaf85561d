"""The lock over an MLflow store; a local file stands in for a server, which has the same database behind it."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import BAD_REQUEST, MlflowException

from hotdraft.pipeline.store import connection
from hotdraft.pipeline.store import lock as store_lock
from hotdraft.pipeline.store.connection import open_client
from hotdraft.pipeline.store.lock import StoreLock, StoreLockError

NAME = "draft.lock"


@pytest.fixture
def client(store_config) -> MlflowClient:
    return open_client(store_config)


def names(client: MlflowClient) -> list[str]:
    return [model.name for model in client.search_registered_models()]


def take_turns(client: MlflowClient, turns: int) -> tuple[int, int]:
    """How many went through, and how many were inside at once at most, with four that ask."""
    inside = most = through = 0
    guard = threading.Lock()

    def one(_: int) -> None:
        nonlocal inside, most, through
        with StoreLock(client, NAME):
            with guard:
                inside, through = inside + 1, through + 1
                most = max(most, inside)
            time.sleep(0.01)
            with guard:
                inside -= 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(turns)))
    return through, most


def test_one_at_a_time_and_nothing_is_left(client):
    assert take_turns(client, 12) == (12, 1)
    assert names(client) == []


def test_the_lock_of_one_who_died_is_broken_once_by_those_who_wait(client, monkeypatch):
    monkeypatch.setattr(store_lock, "LEASE_SECONDS", 0.5)
    dead = StoreLock(client, NAME).__enter__()
    began = time.monotonic()
    assert take_turns(client, 8) == (8, 1)
    assert time.monotonic() - began > 0.5
    assert names(client) == [f"{NAME}.{dead._token}"]


def test_who_was_late_to_break_it_leaves_the_next_holders_alone(client, monkeypatch):
    monkeypatch.setattr(store_lock, "LEASE_SECONDS", 0.2)
    dead = StoreLock(client, NAME).__enter__()
    late = StoreLock(client, NAME)
    assert late._holder() == dead._token
    time.sleep(0.3)
    StoreLock(client, NAME)._break(dead._token)
    monkeypatch.setattr(store_lock, "LEASE_SECONDS", 60.0)
    with StoreLock(client, NAME) as holder:
        late._break(dead._token)
        assert late._holder() == holder._token


def test_who_breaks_it_while_another_does_is_told_nothing(client, monkeypatch):
    dead = StoreLock(client, NAME).__enter__()
    real = client.rename_registered_model

    def crossed(*args, **kwargs):
        real(*args, **kwargs)
        raise MlflowException("expected to update 1 row(s); 0 were matched", BAD_REQUEST)

    monkeypatch.setattr(client, "rename_registered_model", crossed)
    StoreLock(client, NAME)._break(dead._token)
    assert names(client) == [f"{NAME}.{dead._token}"]


def test_a_lock_that_cannot_be_broken_is_told(client, monkeypatch):
    def refuse(*args, **kwargs):
        raise MlflowException("read-only", BAD_REQUEST)

    dead = StoreLock(client, NAME).__enter__()
    monkeypatch.setattr(client, "rename_registered_model", refuse)
    with pytest.raises(MlflowException, match="read-only"):
        StoreLock(client, NAME)._break(dead._token)


@pytest.mark.slow
def test_a_holder_that_took_too_long_stops_and_frees_nothing(client, monkeypatch):
    monkeypatch.setattr(store_lock, "LEASE_SECONDS", 4.0)
    with StoreLock(client, NAME) as slow:
        slow.check()
        time.sleep(2.1)
        with pytest.raises(StoreLockError, match="nothing more is done"):
            slow.check()
    assert names(client) == [NAME], "it may be another's by now"


def test_over_a_server_the_champion_is_moved_under_the_lock_and_not_once_it_may_be_anothers(publisher, monkeypatch):
    monkeypatch.setattr(connection, "sqlite_path", lambda uri: None)
    registry, client = publisher.registry, publisher.client
    first, second = publisher.publish(), publisher.publish()
    registry.promote(first, reason="gate")
    assert names(client) == ["hotdraft-draft"], "it is free again"
    with monkeypatch.context() as slow:
        slow.setattr(store_lock, "LEASE_SECONDS", 0.0)
        for move in (lambda: registry.promote(second, reason="better"), lambda: registry.rollback(reason="fell")):
            with pytest.raises(StoreLockError, match="nothing more is done"):
                move()
            assert "hotdraft-draft.lock" in names(client)
            client.delete_registered_model("hotdraft-draft.lock")
    assert publisher.statuses() == {first: "champion", second: "candidate"}
    assert registry.champion() == first


def test_an_answer_that_was_lost_on_the_way_makes_nobody_wait(client, monkeypatch):
    real = client.create_registered_model

    def asked_twice(*args, **kwargs):
        real(*args, **kwargs)
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(client, "create_registered_model", asked_twice)
        with StoreLock(client, NAME) as lock:
            lock.check()
    assert names(client) == []


def test_who_waits_for_too_long_gives_up(client, monkeypatch):
    monkeypatch.setattr(store_lock, "PATIENCE_SECONDS", 0.2)
    with StoreLock(client, NAME), pytest.raises(StoreLockError, match="held by others"), StoreLock(client, NAME):
        raise AssertionError("two hold it")


def test_a_store_that_is_away_is_told(client, monkeypatch):
    def away(*args, **kwargs):
        raise MlflowException("no route")

    monkeypatch.setattr(client, "create_registered_model", away)
    with pytest.raises(MlflowException, match="no route"), StoreLock(client, NAME):
        pass
