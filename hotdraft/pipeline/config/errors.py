"""What is wrong with a configuration, a line a problem: where it stands, which key, what is allowed."""

import difflib
import os
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from hotdraft.pipeline.config.section import ConfigError
from hotdraft.pipeline.config.sources import Keys, Sources

PREFIX = "HOTDRAFT_"
OTHERS = (
    "CACHE",
    "CONFIG",
    "BIN",
    "FOLDER",
    "SCREENSHOTS",
    "BENCH_PYTHON_",
    "AIRFLOW_PYTHON",
    "CLIENTS_PYTHON",
    "GUIDELLM_PYTHON",
    "SERVICE_",  # Kubernetes sets these and the next for every service, and one may be called hotdraft
    "PORT",
)
"""How variables go on that are no keys of the configuration."""


def problems(error: ValidationError, model: type[BaseModel], sources: Sources) -> str:
    """All that pydantic found, a line each; what it says of the members of a union is one."""
    wrong = [
        item for item in error.errors() if item["type"] != "default_factory_not_called"
    ]  # follows from another
    found = sorted(wrong, key=_where)
    return "\n".join(_problem(keys, list(same), model, sources) for keys, same in groupby(found, key=_where))


def check_variables(model: type[BaseModel]) -> None:
    """Raise `ConfigError` for environment variables that look like keys of the configuration and are none."""
    unknown = list(_unknown_variables(model))
    if unknown:
        raise ConfigError("\n".join(unknown))


def _unknown_variables(model: type[BaseModel]) -> Iterator[str]:
    for name in sorted(os.environ):
        rest = name.upper().removeprefix(PREFIX)
        if not name.upper().startswith(PREFIX) or rest.startswith(OTHERS):
            continue
        keys = tuple(rest.lower().split("__"))
        for depth, key in enumerate(keys):
            section = section_at(model, keys[:depth])
            if section is None:
                break
            if key not in section.model_fields:
                near = [f"{PREFIX}{'__'.join(found).upper()}" for found in _near(model, keys[: depth + 1])]
                yield f"{name}: no such key of the configuration{_perhaps(near)}"
                break


def section_at(model: type[BaseModel], keys: Keys) -> type[BaseModel] | None:
    """The section of the configuration at `keys`; None where there is no section."""
    for key in keys:
        field = model.model_fields.get(key)
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return None
        model = field.annotation
    return model


def _where(item: ErrorDetails) -> Keys:
    """The key as the file has it: pydantic adds which member of a union it tried."""
    return tuple(str(part) for part in item["loc"] if isinstance(part, int) or part.isidentifier())


def _problem(keys: Keys, same: list[ErrorDetails], model: type[BaseModel], sources: Sources) -> str:
    origin, key = sources.origin(keys), ".".join(keys)
    where = {"flag": "by flag", "default": sources.path or "configuration"}.get(origin.origin, origin.where)
    if same[0]["type"] == "extra_forbidden":
        return f"{where}: {key}: no such key{_perhaps(['.'.join(found) for found in _near(model, keys)])}"
    if same[0]["type"] == "missing":
        return f"{where}: {key}: missing, and it has no default"
    says = " or ".join(dict.fromkeys(item["msg"] for item in same))
    value = same[0]["input"]
    told = f", not {value!r}" if isinstance(value, str | int | float) and "key" not in key else ""
    return f"{where}: {key}: {says}{told}"


def _near(model: type[BaseModel], keys: Keys) -> list[Keys]:
    """Keys that may have been meant: of the same section, else of the same name elsewhere."""
    *above, name = keys
    section = section_at(model, tuple(above))
    alike = difflib.get_close_matches(name, section.model_fields if section else [], n=1)
    return [(*above, found) for found in alike] or [found for found in _all(model) if found[-1] == name][:1]


def _all(model: type[BaseModel], above: Keys = ()) -> Iterator[Keys]:
    for name, field in model.model_fields.items():
        yield (*above, name)
        kind: Any = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _all(kind, (*above, name))


def _perhaps(near: list[str]) -> str:
    return f"; did you mean {near[0]}?" if near else ""
