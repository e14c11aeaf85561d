"""What is wrong with a configuration, a line a problem: where it stands, which key, what is allowed."""

import difflib
import os
import re
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from hotdraft.pipeline.config.section import ConfigError
from hotdraft.pipeline.config.sources import Keys, Sources

PREFIX = "HOTDRAFT_"
OTHERS = re.compile(r"API_KEY|CACHE|CONFIG|BIN|FOLDER|SCREENSHOTS|ADDRESS|MEMORY|BENCH_PYTHON_\w+|\w+_PYTHON")
"""How variables go on that are no keys of the configuration."""
OF_KUBERNETES = re.compile(r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP)(_\w+)?)")
"""What it sets for a service, which may be called hotdraft; beside these a `…PORT` that is an address."""


def problems(error: ValidationError, model: type[BaseModel], sources: Sources) -> str:
    """All that pydantic found, a line each; what it says of the members of a union is one."""
    wrong = [
        item for item in error.errors() if item["type"] != "default_factory_not_called"
    ]  # follows from another
    found = sorted(((_where(item, model, sources), item) for item in wrong), key=itemgetter(0))
    by_key = groupby(found, key=itemgetter(0))
    return "\n".join(_problem(keys, [item for _, item in same], model, sources) for keys, same in by_key)


def check_variables(model: type[BaseModel]) -> None:
    """Raise `ConfigError` for environment variables that look like keys of the configuration and are none."""
    unknown = list(_unknown_variables(model))
    if unknown:
        raise ConfigError("\n".join(unknown))


def _unknown_variables(model: type[BaseModel]) -> Iterator[str]:
    for name in sorted(os.environ):
        rest = name.upper().removeprefix(PREFIX)
        if not name.upper().startswith(PREFIX) or OTHERS.fullmatch(rest) or OF_KUBERNETES.fullmatch(rest):
            continue
        if rest.endswith("PORT") and "://" in os.environ[name]:
            continue
        keys = tuple(rest.lower().split("__"))
        unknown = _unknown(model, keys)
        if unknown is not None:
            near = [f"{PREFIX}{'__'.join(found).upper()}" for found in _near(model, unknown)]
            yield f"{name}: no such key of the configuration{_perhaps(near)}"


def _unknown(model: type[BaseModel], keys: Keys) -> Keys | None:
    """The first part of `keys` that leads nowhere; what is below a mapping may have any name."""
    for depth, key in enumerate(keys):
        section = section_at(model, keys[:depth])
        if section is None or key not in section.model_fields:
            return keys[: depth + 1]
        if get_origin(section.model_fields[key].annotation) is dict:
            return None
    return None


def section_at(model: type[BaseModel], keys: Keys) -> type[BaseModel] | None:
    """The section of the configuration at `keys`; None where there is no section."""
    for key in keys:
        field = model.model_fields.get(key)
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return None
        model = field.annotation
    return model


def _where(item: ErrorDetails, model: type[BaseModel], sources: Sources) -> Keys:
    """The key as somebody wrote it: pydantic adds which member of a union it tried."""
    keys: Keys = ()
    for part in map(str, item["loc"]):
        if section_at(model, keys) is not None or sources.has((*keys, part)):
            keys = (*keys, part)
    return keys


def _problem(keys: Keys, same: list[ErrorDetails], model: type[BaseModel], sources: Sources) -> str:
    origin, key = sources.origin(keys), " ".join(".".join(keys).split())
    where = {"flag": "by flag", "default": sources.path or "configuration"}.get(origin.origin, origin.where)
    if same[0]["type"] == "extra_forbidden":
        return f"{where}: {key}: no such key{_perhaps(['.'.join(found) for found in _near(model, keys)])}"
    if same[0]["type"] == "missing":
        return f"{where}: {key}: missing, and it has no default"
    says = " or ".join(dict.fromkeys(item["msg"].removeprefix("Value error, ") for item in same))
    value = same[0]["input"]
    told = f", not {value!r}" if isinstance(value, str | int | float) and "key" not in key else ""
    return f"{where}: {key}: {says}{told}"


def _near(model: type[BaseModel], keys: Keys) -> list[Keys]:
    """Keys that may have been meant: of the same section, else of the same name elsewhere."""
    *above, name = keys
    section = section_at(model, tuple(above))
    alike = difflib.get_close_matches(name.lower(), section.model_fields if section else [], n=1)
    return [(*above, found) for found in alike] or [found for found in _all(model) if found[-1] == name][:1]


def _all(model: type[BaseModel], above: Keys = ()) -> Iterator[Keys]:
    for name, field in model.model_fields.items():
        yield (*above, name)
        kind: Any = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _all(kind, (*above, name))


def _perhaps(near: list[str]) -> str:
    return f"; did you mean {near[0]}?" if near else ""
