"""The replay buffer and the MLflow store: reachable and writable."""

import os
import time
import uuid
from collections.abc import Iterator
from urllib.parse import urlsplit

import fsspec
import httpx
from mlflow.exceptions import MlflowException

from hotdraft.doctor.finding import Finding, ok, problem, warning
from hotdraft.pipeline.config.origins import without_password
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.replay.folder import QUARANTINE
from hotdraft.pipeline.store.adapter_version import UNKNOWN
from hotdraft.pipeline.store.connection import (
    STORE_ERRORS,
    holds_store,
    in_one_line,
    lost,
    open_client,
    sqlite_path,
)
from hotdraft.pipeline.system.disk import nearest_folder

HEALTH_SECONDS = 5.0
MAX_NAMED = 5


def examine_replay(config: HotdraftConfig) -> Iterator[Finding]:
    url, shown = config.replay_url, without_password(config.replay_url)
    mend = "set `replay: {url: …}` to a folder or bucket that this user may write, and see that it answers"
    try:
        fs, root = fsspec.core.url_to_fs(url)
        if fs.exists(root) and not fs.isdir(root):
            yield problem("replay buffer", f"{shown} is no folder", mend)
            return
        shards, aside = _shards(fs, root), _quarantined(fs, root)
        if "file" in fs.protocol:  # nothing is made: the folder may not exist yet
            writable = os.access(nearest_folder(root), os.W_OK | os.X_OK)
        else:
            probe = f"{root}/.doctor-{uuid.uuid4().hex}"
            fs.pipe_file(probe, b"")
            fs.rm_file(probe)
            writable = True
    except Exception as error:  # noqa: BLE001 -- each object store's client has errors of its own
        yield problem("replay buffer", f"{shown}: {without_password(str(error))}", mend)
        return
    if aside:
        named = ", ".join(aside[:MAX_NAMED]) + (
            "" if len(aside) <= MAX_NAMED else f" and {len(aside) - MAX_NAMED} more"
        )
        yield warning(
            "replay buffer",
            f"{len(aside)} files were no readable shards and are set aside in {shown}/{QUARANTINE}: {named}",
            "look why, the server's or the trainer's log says what was wrong with each; they can be deleted",
        )
    if writable:
        says = f"{shown}, {len(shards)} shards, {sum(shards) / 1e6:,.1f} of {config.replay.max_bytes / 1e6:,.0f} MB"
        yield ok("replay buffer", says)
    else:
        yield problem("replay buffer", f"{shown} cannot be written", mend)


def _quarantined(fs: fsspec.AbstractFileSystem, root: str) -> list[str]:
    folder = f"{root}/{QUARANTINE}"
    return sorted(name.rsplit("/", 1)[-1] for name in fs.ls(folder, detail=False)) if fs.isdir(folder) else []


def _shards(fs: fsspec.AbstractFileSystem, root: str) -> list[int]:
    """Bytes of each."""
    if not fs.exists(root):
        return []
    return [entry["size"] for entry in fs.ls(root, detail=True) if entry["name"].endswith(".parquet")]


def examine_mlflow(config: HotdraftConfig) -> Iterator[Finding]:
    uri = config.tracking_uri
    shown = without_password(uri)
    path = sqlite_path(uri)
    if path is not None and not holds_store(path):
        if missed := lost(path):
            yield problem("MLflow store", missed, "see a backup; until then serving goes on with what served last")
        else:
            yield ok("MLflow store", f"{shown} is created when it is first used")
        return
    began = time.monotonic()
    try:
        if config.has_remote_store:  # MLflow itself tries for long before it gives up
            httpx.get(f"{uri.rstrip('/')}/health", timeout=HEALTH_SECONDS, follow_redirects=True).raise_for_status()
        wanted = f"name = '{config.tracking.registered_model}'"
        versions = open_client(config).search_model_versions(wanted, max_results=1000)
    except (*STORE_ERRORS, httpx.HTTPError, ImportError) as error:  # the last: a SOCKS proxy
        yield problem(
            "MLflow store", f"{shown}: {without_password(in_one_line(error))}", _mend_mlflow(config, error)
        )
        return
    foreign = sum(version.tags.get("status", UNKNOWN) == UNKNOWN for version in versions)
    says = f"{shown} answered in {time.monotonic() - began:.2f} s, {len(versions)} adapter versions"
    if foreign:
        says += f", {foreign} of them not made by hotdraft"
    yield ok("MLflow store", says)


def _mend_mlflow(config: HotdraftConfig, error: Exception) -> str:
    uri = config.tracking_uri
    if "out-of-date database schema" in str(error):
        return f"`mlflow db upgrade {without_password(uri)}`, after a copy of the database is made"
    if "Invalid Host header" in str(error):
        return f"start it with `mlflow server --allowed-hosts {urlsplit(uri).netloc.rpartition('@')[2]}`"
    if isinstance(error.__cause__, ModuleNotFoundError):
        return "install that driver of the database: PostgreSQL's comes with `pip install '.[postgres]'`"
    if config.has_remote_store and isinstance(error, MlflowException):  # it answers
        what = "see in that server's log whether its database is up, or set `tracking: {uri: …}` to where MLflow is"
        return f"{what}; serving goes on without it"
    if config.has_remote_store:
        return "start the MLflow server, or set `tracking: {uri: …}` to where it is; serving goes on without it"
    return "see that the database is up and that `tracking: {uri: …}` is right; serving goes on without it"
