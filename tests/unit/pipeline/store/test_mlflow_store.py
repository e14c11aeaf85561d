"""Stores that are away or broken, as a person at the command line meets them."""

import logging
import os
import socket
import sys
from pathlib import Path

import pytest
import yaml
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.store.db import utils as db_utils
from sqlalchemy.exc import InvalidatePoolError

from hotdraft import cli
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.store.connection import StoreError, in_one_line, open_client, store_errors
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.pipeline.store.served import TAG, DomainCounts, Served


def test_a_store_error_is_one_line_and_tells_no_password(tmp_path):
    config = HotdraftConfig(target="t", run_dir=tmp_path, tracking={"uri": "https://me:secret@mlflow.example"})
    with pytest.raises(StoreError) as caught, store_errors(config):
        raise MlflowException("no\nroute")
    assert str(caught.value) == "the MLflow store https://***@mlflow.example cannot be used: no route"


def test_what_the_system_refuses_is_told_and_not_what_it_was_asked_before():
    refused = PermissionError(13, "Permission denied", "jobs")
    refused.__context__ = FileNotFoundError(2, "No such file or directory", "jobs/records")
    assert in_one_line(refused) == "[Errno 13] Permission denied: 'jobs'"
    away = MlflowException("four lines")
    away.__cause__ = refused
    assert in_one_line(away) == in_one_line(refused)


def test_a_database_behind_an_mlflow_server_is_told_of_without_its_statements():
    passed_on = MlflowException(
        "BAD_REQUEST: (raised as a result of Query-invoked autoflush; consider using a session.no_autoflush block "
        "if this flush is occurring prematurely)\n(psycopg2.errors.ReadOnlySqlTransaction) cannot execute INSERT "
        "in a read-only transaction\n\n[SQL: INSERT INTO tags (value) VALUES (%(value)s)]\n"
        "[parameters: {'value': 'secret'}]\n(Background on this error at: https://sqlalche.me/e/20/2j85)"
    )
    refused = "(psycopg2.errors.ReadOnlySqlTransaction) cannot execute INSERT in a read-only transaction"
    assert in_one_line(passed_on) == f"BAD_REQUEST: {refused}"


def test_a_database_whose_driver_is_not_installed_cannot_be_used(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pymysql", None)
    config = HotdraftConfig(target="t", run_dir=tmp_path, tracking={"uri": "mysql+pymysql://me:secret@db/mlflow"})
    with (
        pytest.raises(StoreError, match=r"^the MLflow store mysql\+pymysql://\*\*\*@db/mlflow .*pymysql.*$"),
        store_errors(config),
    ):
        open_client(config)


def test_a_database_that_went_away_beneath_a_connection_is_told_in_its_own_words():
    refused = Exception("connection refused")
    refused.__context__ = InvalidatePoolError()
    away = MlflowException("four lines")
    away.__cause__ = refused
    assert in_one_line(away) == "connection refused"
    assert in_one_line(TimeoutError()) == "TimeoutError"


@pytest.mark.parametrize("exists", [True, False])
def test_a_database_that_cannot_be_opened_is_told_soon(
    exists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    levels: list[int] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        levels.append(db_utils._logger.level)

    monkeypatch.setattr(db_utils.time, "sleep", sleep)
    monkeypatch.setattr(db_utils._logger, "level", logging.CRITICAL)  # as the command has it
    monkeypatch.setattr(db_utils, "MAX_RETRY_COUNT", 10)  # MLflow's, before a store was opened
    run_dir = tmp_path if exists else tmp_path / "/".join(["deep" * 50] * 3)  # longer than SQLite takes
    if exists:
        (tmp_path / "mlflow.db").mkdir()
    config = HotdraftConfig(target="t", run_dir=run_dir)
    with pytest.raises(StoreError, match="unable to open database file"), store_errors(config):
        open_client(config)
    assert sum(waited) < 1
    assert set(levels) == {logging.CRITICAL}


@pytest.fixture
def hotdraft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """Runs the command with a store at `uri`; gives its exit code and what it said."""
    for name in cli.MLFLOW_DEFAULTS:  # so that they are put back
        monkeypatch.setenv(name, cli.MLFLOW_DEFAULTS[name])
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setattr(os, "umask", lambda mask: mask)  # it would stay for the tests to come

    def run(uri: str | None, *arguments: str) -> tuple[object, str, str]:
        path = tmp_path / "config.yaml"
        path.write_text(
            yaml.safe_dump(
                {"target": "t", "draft": "d", "run_dir": str(tmp_path / "run"), "tracking": {"uri": uri}}
            )
        )
        monkeypatch.setattr(sys, "argv", ["hotdraft", *arguments, "--config", str(path)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return ended.value.code, said.out, said.err

    return run


@pytest.fixture
def refusing() -> str:
    """An address that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("adapters", "list"), ("adapters", "promote", "1"), ("distill", "--once")])
def test_an_unreachable_store_is_one_line_and_exit_code_2(hotdraft, refusing, arguments):
    code, out, error = hotdraft(refusing, *arguments)
    assert code == 2
    assert out == ""
    assert error.startswith(f"hotdraft: the MLflow store {refusing} cannot be used: ")
    assert error.endswith("Connection refused\n")
    assert error.count("\n") == 1


def test_a_file_that_is_no_store_is_one_line_too(hotdraft, tmp_path):
    (tmp_path / "broken.db").write_text("this is no database, " * 50)
    code, _, error = hotdraft(f"sqlite:///{tmp_path / 'broken.db'}", "adapters", "list")
    assert code == 2
    assert error.endswith("cannot be used: file is not a database\n")
    assert error.count("\n") == 1


@pytest.fixture
def published(store_config, tmp_path):
    """A store with one version; its address."""
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "weights").write_text("w")
    uri = store_config.tracking_uri
    run = MlflowClient(uri, uri).create_run("0").info.run_id
    AdapterRegistry(store_config).publish(tmp_path / "adapter", run_id=run, tags={"reason": "gain too small"})
    return uri


def test_a_version_promoted_by_hand_is_marked_until_it_is_unpinned(hotdraft, published):
    def row() -> list[str]:
        out = hotdraft(published, "adapters", "list")[1]
        return next(line for line in out.splitlines() if line.startswith("1")).split()[1:3]

    assert row()[0] == "candidate"
    _, said, _ = hotdraft(published, "adapters", "promote", "1", "--reason", "good at SQL")
    assert said == "version 1 is the champion, pinned by hand until `hotdraft adapters unpin`\n"
    assert row() == ["champion", "*"]
    out = hotdraft(published, "adapters", "show", "1")[1]
    assert "champion, pinned by hand until" in out
    assert "gain too small" in out, "the gate's words"
    assert "promoted: good at SQL" in out
    assert hotdraft(published, "adapters", "unpin")[1] == "version 1 is the champion, not pinned\n"
    assert row()[1] != "*"
    hotdraft(published, "adapters", "rollback")
    assert "no adapter serves, pinned by hand until" in hotdraft(published, "adapters", "list")[1]


def test_adapters_show_what_was_served_next_to_what_the_gate_promised(hotdraft, store_config, tmp_path):
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "weights").write_text("w")
    uri = store_config.tracking_uri
    run = MlflowClient(uri, uri).create_run("0")
    counts = Served(4, 40, 32, 20, 1763772000, 1763773000, {"sql": DomainCounts(4, 32, 20)})
    tags = {
        "candidate_expected_acceptance": "0.7100",
        "gate_by_domain": '{"sql": {"requests": 12, "champion": 0.2, "candidate": 0.71}}',
        TAG + "abc": counts.to_tag(),
    }
    AdapterRegistry(store_config).publish(tmp_path / "adapter", run_id=run.info.run_id, tags=tags)
    code, out, _ = hotdraft(uri, "adapters", "list")
    assert code == 0
    row = next(line for line in out.splitlines() if line.startswith("1"))
    assert row.split()[-3:] == ["0.710", "0.625", "4"]
    code, out, _ = hotdraft(uri, "adapters", "show", "1")
    assert code == 0
    assert [cell.strip() for line in out.splitlines() if "sql" in line for cell in line.strip("│ ").split("│")] == [
        "sql", "12", "0.200", "0.710", "0.625", "4",
    ]  # fmt: skip
    assert any("abc" in line and "0.500" in line for line in out.splitlines())
