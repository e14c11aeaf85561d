"""Every value of a configuration, and where it comes from."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotdraft.pipeline.config.settings import read
from hotdraft.pipeline.config.sources import Keys, Origin


@dataclass(frozen=True)
class Setting:
    key: str
    """As in the file, with dots between levels."""
    value: Any
    """As JSON has it; a secret is masked."""
    origin: Origin


def explain(path: str | Path | None, overrides: Mapping[str, Any] | None = None) -> list[Setting]:
    """Every value of `load_config(path, overrides)`, in the order of the configuration.

    Raises `ConfigError` where `load_config` does.
    """
    config, sources = read(path, overrides)
    return [
        Setting(".".join(keys), json.loads(without_password(json.dumps(value))), sources.origin(keys))
        for keys, value in _leaves(config.model_dump(mode="json"))
    ]


def _leaves(values: Mapping[str, Any], above: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*above, key))
        else:
            yield (*above, key), value


def without_password(text: str) -> str:
    """`text` with the password of every address in it masked: stores may be named with one."""
    return re.sub(r"(://[^/@:\"\s]*):[^/@\"\s]+@", r"\1:**********@", text)
