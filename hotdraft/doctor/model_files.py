"""The models of a configuration as far as their files tell: no weights are read and nothing is downloaded."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open

from hotdraft.doctor.finding import Finding, ok, problem, warning
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import check_same_vocabulary, load_tokenizer
from hotdraft.pipeline.models.names import FETCHABLE, SHIPPED_DRAFTS, ModelError, cache_folder, read_cut, resolve
from hotdraft.pipeline.system.disk import nearest_folder

INDEX = "model.safetensors.index.json"


def examine_models(config: HotdraftConfig | None) -> Iterator[Finding]:
    yield from _shipped()
    yield from _cache()
    if config is None:
        return
    folders = []
    for role, name in (("target", config.target), ("draft", config.draft)):
        if name is None:
            yield warning(role, "none is configured: nothing speeds up the target", f"name a model under `{role}:`")
            return
        folder, findings = _model(role, name)
        yield from findings
        folders.append(folder)
    target, draft = folders
    if target is not None and draft is not None:
        yield _vocabulary(config.target, target, config.draft or "", draft)


def _model(role: str, name: str) -> tuple[Path | None, list[Finding]]:
    """The folder of a model, None where there is none, and what is to say of it."""
    fetch = f"`hotdraft models fetch {name}`" if name in FETCHABLE else f"name another model under `{role}:`"
    try:
        resolved = resolve(name)
        folder = Path(resolved if Path(resolved).is_dir() else snapshot_download(name, local_files_only=True))
    except LocalEntryNotFoundError:
        says = f"{name} is not on this machine: it is downloaded from the hub when it is first used"
        return None, [warning(role, says, f"`hf download {name}` gets it now; without a hub, name a local folder")]
    except (ModelError, HFValidationError) as error:
        return None, [problem(role, str(error), fetch)]
    missing = list(_missing(folder))
    if missing:
        return None, [problem(role, f"{name}: {folder} lacks {', '.join(missing)}", fetch)]
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    findings = [ok(role, f"{name}, {size / 1e6:,.0f} MB in {folder}")]
    cut = read_cut(folder)
    if cut is None:
        return folder, findings
    base, of_base = _model(f"base of {role}", cut.base)
    return base, findings + [finding for finding in of_base if finding.state != "ok"]


def _missing(folder: Path) -> Iterator[str]:
    if not (folder / "config.json").is_file():
        yield "config.json"
    index = folder / INDEX
    named = set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else {"model.safetensors"}
    yield from sorted(name for name in named if not (folder / name).is_file())


def _vocabulary(target: str, target_folder: Path, draft: str, draft_folder: Path) -> Finding:
    try:
        tokenizers = load_tokenizer(str(target_folder)), load_tokenizer(str(draft_folder))
        check_same_vocabulary(target, tokenizers[0], draft, tokenizers[1])
    except ModelError as error:
        return problem("vocabulary", str(error), "choose a draft of the target's family, or make one: "
                       "`hotdraft predistill --config FILE --out FOLDER`")  # fmt: skip
    return ok("vocabulary", f"target and draft share {len(tokenizers[0].get_vocab()):,} tokens")


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
