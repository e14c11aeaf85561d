"""What a pre-distillation remembers beside its checkpoints, so that it goes on as the same run or not at all."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotdraft.pipeline.system.json_file import write_json

FILE = "run.json"


class RunRecordError(ValueError):
    """Checkpoints of another run; the message says what differs and what to do."""


def begin_or_resume(checkpoints: Path, recipe: dict[str, Any], begin: Callable[[], str]) -> str:
    """The id of the MLflow run that `checkpoints` belong to; that of a new one, by `begin`, if there are none.

    `recipe` is what the run was begun with, ready for JSON; another one raises `RunRecordError`.
    """
    run_id = run_of(checkpoints, lambda: recipe)
    if run_id is None:
        run_id = begin()
        write_json(checkpoints / FILE, {"run_id": run_id, "recipe": recipe})
    return run_id


def run_of(checkpoints: Path, recipe: Callable[[], dict[str, Any]]) -> str | None:
    """As `begin_or_resume`, but None if there are none; only otherwise it asks for the `recipe`."""
    path = checkpoints / FILE
    if not path.is_file():
        return None
    record, told = json.loads(path.read_text()), recipe()
    begun_with = record["recipe"]
    keys = told.keys() | begun_with.keys()
    differing = sorted(key for key in keys if told.get(key) != begun_with.get(key))
    if differing:
        raise RunRecordError(
            f"{checkpoints} holds a run that was begun with other settings ({', '.join(differing)}): "
            "set them back, delete that folder, or choose another run_dir"
        )
    return record["run_id"]
