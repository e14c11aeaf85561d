"""Where each value of a configuration comes from, told by the sources that pydantic-settings reads."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic_settings import (
    DotEnvSettingsSource,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
)

from hotdraft.pipeline.config.settings import load_config

Keys = tuple[str, ...]


@dataclass(frozen=True)
class Setting:
    key: str
    """As in the file, with dots between levels."""
    value: Any
    """As JSON has it; a secret is masked."""
    origin: Literal["default", "file", "environment", "flag"]
    variable: str | None = None
    """The environment variable that set it."""


def explain(path: str | Path, overrides: Mapping[str, Any] | None = None) -> list[Setting]:
    """Every value of `load_config(path, overrides)`, in the order of the configuration.

    Raises `ConfigError` where `load_config` does.
    """
    flags = dict(overrides or {})
    config = load_config(path, flags)
    cls = type(config)
    init, environment = InitSettingsSource(cls, init_kwargs=flags), EnvSettingsSource(cls)
    sources = cls.settings_customise_sources(
        cls, init, environment, DotEnvSettingsSource(cls), SecretsSettingsSource(cls)
    )
    told = [(source, source()) for source in sources]  # the first that has a key decides, as when they are merged
    return [
        _setting(keys, value, next((source for source, values in told if _has(values, keys)), None))
        for keys, value in _leaves(config.model_dump(mode="json"))
    ]


def _setting(keys: Keys, value: Any, source: PydanticBaseSettingsSource | None) -> Setting:
    key, shown = ".".join(keys), json.loads(without_password(json.dumps(value)))
    match source:
        case None:
            return Setting(key, shown, "default")
        case EnvSettingsSource():
            return Setting(key, shown, "environment", _variable(source, keys))
        case InitSettingsSource() if type(source) is InitSettingsSource:  # the YAML source is one as well
            return Setting(key, shown, "flag")
        case _:
            return Setting(key, shown, "file")


def _leaves(values: Mapping[str, Any], above: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*above, key))
        else:
            yield (*above, key), value


def _has(values: Any, keys: Keys) -> bool:
    for key in keys:
        if not isinstance(values, Mapping) or key not in values:
            return False
        values = values[key]
    return True


def _variable(source: EnvSettingsSource, keys: Keys) -> str:
    """The variable of the key itself, else of the section around it, whose value is JSON."""
    names = ["__".join(keys[:depth]) for depth in range(len(keys), 0, -1)]
    wanted = [f"{source.env_prefix}{name}".lower() for name in names]
    found = next(name for name in wanted if name in source.env_vars)
    return next(name for name in os.environ if name.lower() == found)


def without_password(text: str) -> str:
    """`text` with the password of every address in it masked: stores may be named with one."""
    return re.sub(r"(://[^/@:\"\s]*):[^/@\"\s]+@", r"\1:**********@", text)
