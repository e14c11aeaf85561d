"""The replay buffer, the MLflow store and the disk under them: reachable, writable, with room."""

import os
import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import fsspec
import httpx
from mlflow import MlflowClient

from hotdraft.doctor.finding import Finding, ok, problem, warning
from hotdraft.pipeline.config.origins import without_password
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.replay.folder import QUARANTINE
from hotdraft.pipeline.store.adapter_version import UNKNOWN
from hotdraft.pipeline.store.connection import STORE_ERRORS, sqlite_path
from hotdraft.pipeline.system.disk import free_bytes, nearest_folder

MIN_FREE_BYTES = 1_000_000_000
"""What checkpoints of a job, adapters and logs may need beside the replay buffer."""
HEALTH_SECONDS = 5.0
MAX_NAMED = 5


def examine_run_dir(config: HotdraftConfig) -> Iterator[Finding]:
    place, free = nearest_folder(config.run_dir), free_bytes(config.run_dir)
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        mend = f"`chown` {place} to the user that serves, or set `run_dir:` to a folder that it owns"
        yield problem("run_dir", f"{config.run_dir} cannot be written", mend)
        return
    says = f"{config.run_dir}, {free / 1e9:.1f} GB free"
    needed = MIN_FREE_BYTES + config.replay.max_bytes
    if free < MIN_FREE_BYTES:
        yield problem("run_dir", says, f"free some space: a job needs up to {MIN_FREE_BYTES / 1e9:g} GB")
    elif free < needed and config.replay.url is None:
        mend = f"free some space, or set `replay: {{max_bytes: {max(1, int(free) - MIN_FREE_BYTES)}}}`"
        yield warning("run_dir", f"{says}, and the replay buffer alone may take {needed / 1e9:.1f} GB", mend)
    else:
        yield ok("run_dir", says)
    yield from _privacy(config)


def _privacy(config: HotdraftConfig) -> Iterator[Finding]:
    """What was made before hotdraft kept its files to their owner, or made so by somebody else."""
    if not config.run_dir.is_dir() or not _is_open(config.run_dir):
        return
    inside = [config.run_dir / "replay", config.run_dir / "mlflow.db"]
    if read := [path for path in inside if path.exists() and _is_open(path)]:
        says = f"other users of this machine can read recorded prompts in {' and '.join(map(str, read))}"
        yield warning("run_dir", says, f"`chmod -R go-rwx {config.run_dir}`")


def _is_open(path: Path) -> bool:
    return bool(path.stat().st_mode & (stat.S_IROTH | stat.S_IXOTH))


def examine_replay(config: HotdraftConfig) -> Iterator[Finding]:
    url, shown = config.replay_url, without_password(config.replay_url)
    mend = "set `replay: {url: …}` to a folder or bucket that this user may write"
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
    except (OSError, ImportError, ValueError) as error:  # away or forbidden, no such filesystem, no such protocol
        yield problem("replay buffer", f"{shown}: {without_password(str(error))}", mend)
        return
    if aside:
        named = ", ".join(aside[:MAX_NAMED]) + (
            "" if len(aside) <= MAX_NAMED else f" and {len(aside) - MAX_NAMED} more"
        )
        yield warning(
            "replay buffer",
            f"{len(aside)} files were no readable shards and are set aside in {shown}/{QUARANTINE}: {named}",
            "look why, the server's log says what was wrong with each; they can be deleted",
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
    if path is not None and not path.exists():
        yield ok("MLflow store", f"{shown} is created when it is first used")
        return
    began = time.monotonic()
    try:
        if config.has_remote_store:  # MLflow itself tries for long before it gives up
            httpx.get(f"{uri.rstrip('/')}/health", timeout=HEALTH_SECONDS, follow_redirects=True).raise_for_status()
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        versions = client.search_model_versions(f"name = '{config.tracking.registered_model}'", max_results=1000)
    except (*STORE_ERRORS, httpx.HTTPError) as error:
        first_line = without_password(str(error)).strip().partition("\n")[0]
        yield problem("MLflow store", f"{shown}: {first_line}", _mend_mlflow(config, str(error)))
        return
    foreign = sum(version.tags.get("status", UNKNOWN) == UNKNOWN for version in versions)
    says = f"{shown} answered in {time.monotonic() - began:.2f} s, {len(versions)} adapter versions"
    if foreign:
        says += f", {foreign} of them not made by hotdraft"
    yield ok("MLflow store", says)


def _mend_mlflow(config: HotdraftConfig, error: str) -> str:
    uri = config.tracking_uri
    if "out-of-date database schema" in error:
        return f"`mlflow db upgrade {without_password(uri)}`, after a copy of the database is made"
    if "Invalid Host header" in error:
        return f"start it with `mlflow server --allowed-hosts {urlsplit(uri).netloc.rpartition('@')[2]}`"
    if config.has_remote_store:
        return "start the MLflow server, or set `tracking: {uri: …}` to where it is; serving goes on without it"
    return "see that the database is up and that `tracking: {uri: …}` is right; serving goes on without it"
