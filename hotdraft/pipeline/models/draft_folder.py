"""Writing a draft's folder: the plain form that other programs load, or the slim form that needs its base.

The plain form is what transformers saves: config, all weights, generation config, tokenizer and chat
template. The slim form is that of a cut draft without what its base has (see `pipeline.models.loading`).
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from hotdraft.pipeline.models.loading import save_cut
from hotdraft.pipeline.models.names import Cut, ModelError


def check_out(folder: Path) -> None:
    """Raise `ModelError` unless a draft can be written to `folder`: absent or empty, in a writable place."""
    if folder.exists() and not folder.is_dir():
        raise ModelError(f"{folder} is a file; a model is written to a new or empty folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise ModelError(f"{folder} is not empty; a model is written to a new or empty folder")
    above = next(parent for parent in folder.absolute().parents if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise ModelError(f"{folder} cannot be written: {above} is not a folder with permission to write")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder beside `folder` to write into, which takes its name when all is written.

    Left with an error it disappears; what a killed process left is cleared away by the next. Raises
    `ModelError` as `check_out` does.
    """
    check_out(folder)
    partial = folder.absolute().with_name(f".{folder.absolute().name}.tmp")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        partial.rename(folder)  # which may exist, if it is empty
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def save_draft(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    cut: Cut | None = None,
    *,
    slim: bool = False,
) -> None:
    """Write `model` into `folder`, which `new_folder` makes, in the plain form or, if `slim`, in the slim one.

    `cut` is the model's origin, None if it was cut from nothing; then there is no slim form of it and
    `ModelError` is raised.
    """
    if not slim:
        save_plain(folder, model, tokenizer)
        return
    if cut is None:
        raise ModelError("only a draft that was cut from a target has a slim form")
    save_cut(folder, model, cut)
    _let_others_read(folder)


def save_plain(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write `model` into `folder` as transformers does."""
    model.generation_config = _endings(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _let_others_read(folder)


def _let_others_read(folder: Path) -> None:
    for weights in folder.glob("*.safetensors"):  # safetensors lets nobody else read what it writes
        weights.chmod((folder / "config.json").stat().st_mode)


def _endings(model: PreTrainedModel) -> GenerationConfig:
    """What ends a text, and none of the sampling options: the target's hold, and odd ones cannot be saved."""
    known = model.generation_config or GenerationConfig.from_model_config(model.config)
    return GenerationConfig(
        bos_token_id=known.bos_token_id, eos_token_id=known.eos_token_id, pad_token_id=known.pad_token_id
    )
