"""The models of a configuration as far as their files tell: no weights are read and nothing is downloaded."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from hotdraft.doctor.finding import Finding, ok, problem, warning
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.names import (
    FETCHABLE,
    SHIPPED_DRAFTS,
    ModelError,
    cache_folder,
    installed_folder,
    read_cut,
)
from hotdraft.pipeline.system.disk import nearest_folder

INDEX = "model.safetensors.index.json"


def examine_models(config: HotdraftConfig | None) -> Iterator[Finding]:
    yield from _shipped()
    yield from _cache()
    if config is not None:
        yield from examine_configured(config)


def examine_configured(config: HotdraftConfig) -> Iterator[Finding]:
    """Target and draft, whether their files are all there."""
    yield from _examine("target", config.target)
    if config.draft is not None:
        yield from _examine("draft", config.draft)
    elif config.engine.guesses:
        yield ok("draft", "none is configured: tokens are guessed from text alone, and there is nothing to learn")
    else:
        yield warning("draft", "none is configured: nothing speeds up the target", "name a model under `draft:`")


def _examine(role: str, name: str) -> Iterator[Finding]:
    fetch = f"`hotdraft models fetch {name}`" if name in FETCHABLE else f"name another model under `{role}:`"
    try:
        folder = installed_folder(name)
    except ModelError as error:
        yield problem(role, str(error), fetch)
        return
    if folder is None:
        says = f"{name} is not on this machine: it is downloaded from the hub when it is first used"
        yield warning(role, says, f"`hf download {name}` gets it now; without a hub, name a local folder")
        return
    try:
        missing = list(_missing(folder))
        cut = read_cut(folder)
    except ModelError as error:
        yield problem(role, f"{name}: {error}", fetch)
        return
    if missing:
        yield problem(role, f"{name}: {folder} lacks {', '.join(missing)}", fetch)
        return
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    yield ok(role, f"{name}, {size / 1e6:,.0f} MB in {folder}")
    if cut is not None:
        yield from (found for found in _examine(f"base of {role}", cut.base) if found.state != "ok")


def _missing(folder: Path) -> Iterator[str]:
    """Raises `ModelError` for what is there and says nothing."""
    if (path := folder / "config.json").is_file():
        _mapping(path)
    else:
        yield "config.json"
    index = folder / INDEX
    weights = _mapping(index).get("weight_map") if index.is_file() else {"": "model.safetensors"}
    if not isinstance(weights, dict):
        raise ModelError(f"{index} has no weight_map, which says where the tensors are")
    named = set(map(str, weights.values()))
    yield from sorted(name for name in named if not (folder / name).is_file())


def _mapping(path: Path) -> dict[str, Any]:
    try:
        says = json.loads(path.read_text())
    except (OSError, ValueError) as error:  # the latter of no text, and of no JSON
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(says, dict):
        raise ModelError(f"{path} holds no JSON object")
    return says


def _shipped() -> Iterator[Finding]:
    mend = "install hotdraft again: `pip install --force-reinstall hotdraft`"
    folders = sorted(path for path in SHIPPED_DRAFTS.glob("*") if path.is_dir())
    if not folders:
        yield problem("shipped drafts", f"none in {SHIPPED_DRAFTS}", mend)
    for folder in folders:
        try:
            with safe_open(folder / "model.safetensors", framework="pt") as file:  # reads names and shapes alone
                says = f"{folder.name}, {len(list(file.keys()))} tensors"
        except (OSError, SafetensorError) as error:
            yield problem("shipped draft", f"{folder.name} is broken: {error}", mend)
        else:
            yield ok("shipped draft", says)


def _cache() -> Iterator[Finding]:
    cache = cache_folder()
    place = nearest_folder(cache)
    if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
        yield ok("model cache", str(cache))
    else:
        yield warning(
            "model cache",
            f"{cache} cannot be written: `hotdraft models fetch` will fail",
            "set HOTDRAFT_CACHE to a folder that you own",
        )
