"""Opening the MLflow store that a configuration names, from any number of processes at once.

MLflow creates a SQLite store by some forty schema migrations, which two processes must not run
together and which a kill would leave half done. So the file is built aside, under a lock, and
appears by rename.
"""

import logging
import os
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from filelock import FileLock
from mlflow import MlflowClient
from mlflow.entities import Experiment, LifecycleStage, Param
from mlflow.entities.model_registry import RegisteredModel
from mlflow.exceptions import MlflowException
from mlflow.tracking.context.registry import resolve_tags
from sqlalchemy import event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DisconnectionError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry, Pool

from hotdraft.pipeline.config.settings import ARTIFACTS, HotdraftConfig
from hotdraft.pipeline.store.lock import StoreLock

STORE_ONLY_ERRORS = (MlflowException, SQLAlchemyError)
STORE_ERRORS = (*STORE_ONLY_ERRORS, OSError)
"""How a store that is away or broken shows; MLflow wraps most errors below it, not all."""

ABSENT = {"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"}  # the latter for an alias nobody has set
TRAINING_PAGES = {"mlflow.experimentKind": "custom_model_development"}  # not those for traces of agents
FROM_SQLALCHEMY = re.compile(
    r"\(raised as a result of [^)]*\)|\[SQL: .*|\(Background on this error at: .*", re.DOTALL
)
"""What it adds to a database's words, all of which an MLflow server passes on: statements, with their values."""
TOKEN_TAG = "hotdraft.token"
"""Of a run: what tells it from others, but for those that one request made."""
OPENING_TRIES = 2
"""Of a database that cannot be opened: MLflow's ten take 102 s, within which nothing would say what is wrong."""
MAX_PARAMS_AT_ONCE = 100  # MLflow's limit


class StoreError(ValueError):
    """The store cannot be reached or used; the message says which, and why."""


def open_client(config: HotdraftConfig) -> MlflowClient:
    """A client of the tracking store and model registry at `config.tracking_uri`, created if absent.

    Raises `MlflowException` where it is absent and was not always, see `lost`.
    """
    if not config.has_remote_store:
        from mlflow.store.db import utils  # which a client of an MLflow server does not load

        utils.MAX_RETRY_COUNT = OPENING_TRIES
    path = sqlite_path(config.tracking_uri)
    if path is not None:
        _create_sqlite(path)
    try:
        return MlflowClient(tracking_uri=config.tracking_uri, registry_uri=config.tracking_uri)
    except ModuleNotFoundError as error:  # the database's driver, which hotdraft does not come with
        raise MlflowException(str(error)) from error


@event.listens_for(Pool, "checkout")
def _look_at_file(connection: Any, record: ConnectionPoolEntry, *_: object) -> None:
    """Has a SQLite store opened anew whose file was replaced, and one away whose file is gone.

    A connection that is kept would go on with the deleted file, as if nothing were amiss.
    """
    if not isinstance(connection, sqlite3.Connection):
        return
    path, opened = record.info.get("file", (None, None))
    if path is None:
        path = connection.execute("PRAGMA database_list").fetchone()[2]
        opened = path and os.stat(path)
        record.info["file"] = path, opened
    if path and not os.path.samestat(os.stat(path), opened):
        raise DisconnectionError(f"{path} is another file than when it was opened")


def require_store(config: HotdraftConfig) -> None:
    """Raises `StoreError` where a SQLite store has no file: to look must not make one."""
    path = sqlite_path(config.tracking_uri)
    if path is not None and not holds_store(path):
        raise StoreError(
            lost(path) or f"there is no store of adapters at {path.absolute()}: nothing has run with it yet"
        )


def holds_store(path: Path) -> bool:
    """Whether there is a SQLite store: an empty file, as the end of power or a full disk may leave, is none."""
    return path.exists() and path.stat().st_size > 0


def lost(path: Path) -> str | None:
    """What is wrong with a SQLite store that is not there but files of its runs are; None if it has yet to be made.

    A new one in its place would name no version, and what took service from then on would be lost with the old one.
    """
    files = path.absolute().parent / ARTIFACTS
    if not files.is_dir() or not any(files.iterdir()):
        return None
    what = "empty" if path.exists() else "gone"
    return f"{path.absolute()} is {what}, to which {files} belongs: put it back, or move both away to begin anew"


def experiment_id(client: MlflowClient, config: HotdraftConfig, name: str) -> str:
    """Id of the experiment `name`, created if absent and restored if somebody deleted it: names are not free again.

    Its artifacts go under `config.artifact_root`, unless an MLflow server keeps them itself.
    """
    location = None if config.has_remote_store else f"{config.artifact_root}/{name}"
    found = client.get_experiment_by_name(name)
    if found is not None:
        _check_named(found, name)
        if found.lifecycle_stage == LifecycleStage.DELETED:
            client.restore_experiment(found.experiment_id)
        return found.experiment_id
    try:
        return client.create_experiment(name, artifact_location=location, tags=TRAINING_PAGES)
    except MlflowException as error:
        found = client.get_experiment_by_name(name)  # another process may have been first
        if found is None:
            raise error
        return found.experiment_id


def registered_model(client: MlflowClient, name: str) -> RegisteredModel:
    """The one of this name, created if absent, which it is again where somebody deleted it."""
    try:
        found = client.get_registered_model(name)
    except MlflowException as error:
        if error.error_code not in ABSENT:
            raise
    else:
        _check_named(found, name)
        return found
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another process may have been first
            raise
    return client.get_registered_model(name)


def _check_named(found: Experiment | RegisteredModel, name: str) -> None:
    if found.name != name:  # MLflow's client takes any JSON for what it asked for
        raise MlflowException("what answers there is no MLflow server")


@contextmanager
def store_errors(config: HotdraftConfig, kinds: tuple[type[Exception], ...] = STORE_ERRORS) -> Iterator[None]:
    """Raises `StoreError`, of one line, where the store fails in one of these ways."""
    try:
        yield
    except kinds as error:
        uri = re.sub(r"://[^/@]*@", "://***@", config.tracking_uri)  # no passwords in logs
        raise StoreError(f"the MLflow store {uri} cannot be used: {in_one_line(error)}") from error


def in_one_line(error: BaseException) -> str:
    """What began it: MLflow's own words for a refused connection are four lines, for a full disk they are SQL.

    What the system says has begun nowhere else: a folder that cannot be made was also looked for before. Nor has
    what has no words, as SQLAlchemy's of a connection that it gives up.
    """
    while not getattr(error, "errno", None) and (cause := error.__cause__ or error.__context__) and cause.args:
        error = cause
    text = FROM_SQLALCHEMY.sub("", str(error))
    return re.sub(r"\s+", " ", text).strip()[:300] or type(error).__name__


def create_run(
    client: MlflowClient,
    experiment: str,
    name: str,
    command: str,
    tags: Mapping[str, str] | None = None,
    *,
    started: float | None = None,
) -> str:
    """Id of a new run, with the tags that MLflow gives any run of its own: user, source, commit.

    `started` is the Unix time in seconds from which it counts; now if None. MLflow's client asks again where an
    answer is late, and each time a run is made: those that nobody was told of are ended.
    """
    token = uuid4().hex
    source = {"mlflow.source.name": command, "mlflow.source.type": "LOCAL", TOKEN_TAG: token}
    start_time = None if started is None else int(1000 * started)
    run = client.create_run(experiment, start_time, resolve_tags({**source, **(tags or {})}), run_name=name)
    for twin in client.search_runs([experiment], f"tags.`{TOKEN_TAG}` = '{token}'"):
        if twin.info.run_id != run.info.run_id:
            client.set_terminated(twin.info.run_id, "KILLED")
    return run.info.run_id


def log_params(client: MlflowClient, run_id: str, settings: Mapping[str, object], **more: object) -> None:
    """Log each of `settings` under its dotted key. The same may be logged twice, and never changes."""
    values = {**dict(_flat(settings)), **more}
    params = [Param(key, str(value)) for key, value in values.items()]
    for start in range(0, len(params), MAX_PARAMS_AT_ONCE):
        client.log_batch(run_id, params=params[start : start + MAX_PARAMS_AT_ONCE])


def has_run(client: MlflowClient, run_id: str) -> bool:
    """Whether the store has it, and not as one that was deleted."""
    try:
        return bool(client.get_run(run_id).info.lifecycle_stage == "active")
    except MlflowException as error:
        if error.error_code in ABSENT:
            return False
        raise


@contextmanager
def exclusive(config: HotdraftConfig, client: MlflowClient, name: str) -> Iterator[Callable[[], None]]:
    """Holds off all others that change the registered model `name`, on this machine or another.

    Gives what is to be called before a change that must not happen twice: it raises `StoreLockError` where
    others may have stopped waiting. A local file's lock is freed by the kernel when its holder dies.
    """
    path = sqlite_path(config.tracking_uri)
    if path is None:
        with StoreLock(client, f"{name}.lock") as lock:
            yield lock.check
    else:
        with FileLock(f"{path}.lock"):
            yield lambda: None


def _flat(settings: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def sqlite_path(uri: str) -> Path | None:
    """The file of a SQLite store; None for any other, and for one in memory."""
    if not uri.startswith("sqlite:"):
        return None
    database = make_url(uri).database
    return Path(database) if database and database != ":memory:" else None


def _create_sqlite(path: Path) -> None:
    if holds_store(path):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        if holds_store(path):
            return
        if missed := lost(path):
            raise MlflowException(missed)
        with tempfile.TemporaryDirectory(prefix=".mlflow-", dir=path.parent) as folder, _quiet():
            temporary = Path(folder).absolute() / path.name
            uri = f"sqlite:///{temporary}"
            MlflowClient(tracking_uri=uri, registry_uri=uri).search_experiments(max_results=1)
            os.replace(temporary, path)


@contextmanager
def _quiet() -> Iterator[None]:
    """Leaves out what MLflow and alembic say of each migration, below warnings."""
    loggers = [logging.getLogger(name) for name in ("mlflow.store.db.utils", "alembic")]
    levels = [logger.level for logger in loggers]
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(max(level, logging.WARNING))
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
