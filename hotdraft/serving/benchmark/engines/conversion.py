"""Copies of a model in an engine's own format, kept until the model changes. Standard library only."""

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def converted(source: Path, cache_folder: Path, form: str, convert: Callable[[Path, Path], None]) -> Path:
    """The model folder `source` in another format: `cache_folder/<digest of its contents>-<form>`.

    `convert(source, destination)` writes the file or folder `destination` if it is not there yet. A
    conversion that fails leaves nothing behind.
    """
    destination = cache_folder / f"{folder_digest(source)}-{form}"
    if not destination.exists():
        cache_folder.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=cache_folder))
        try:
            convert(source, unfinished / form)
            (unfinished / form).replace(destination)
        finally:
            shutil.rmtree(unfinished)
    return destination


def folder_digest(folder: Path) -> str:
    """16 hex digits that change with the weights, the configuration or the tokenizer."""
    digest = hashlib.blake2b(digest_size=8)
    for file in sorted([*folder.glob("*.safetensors"), *folder.glob("*.json")]):
        digest.update(file.name.encode())
        with file.open("rb") as content:
            while block := content.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
