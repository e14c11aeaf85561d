"""The places that a value may come from: a flag, an environment variable, a line of the file."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsError

from hotdraft.pipeline.config.section import ConfigError

Keys = tuple[str, ...]

SHIPPED_CONFIGS = Path(__file__).parent / "shipped-configs"


@dataclass(frozen=True)
class Origin:
    origin: Literal["default", "file", "environment", "flag"]
    where: str | None = None
    """Name of the environment variable, or file and line."""


class Sources:
    """Raises `ConfigError` for a file that cannot be read, is no YAML, holds no mapping, or has a key twice."""

    def __init__(self, cls: type[BaseSettings], path: Path | None, flags: Mapping[str, Any]) -> None:
        self.flags = flags
        self.path = None if path is None else config_file(path)
        self.file, self._lines = ({}, {}) if self.path is None else _read(self.path)
        self._environment = EnvSettingsSource(cls)

    def origin(self, keys: Keys) -> Origin:
        """Where the value at `keys` comes from, or that of the section around it."""
        if _has(self.flags, keys):
            return Origin("flag")
        if (variable := self._variable(keys)) is not None:
            return Origin("environment", variable)
        if _has(self.file, keys):
            parts = (keys[:depth] for depth in range(len(keys), 0, -1))  # what is merged has no line of its own
            line = next(self._lines[part] for part in parts if part in self._lines)
            return Origin("file", f"{self.path}:{line}")
        return Origin("default")

    def has(self, keys: Keys) -> bool:
        return self.origin(keys).origin != "default"

    def without_json(self) -> Iterator[tuple[str, str]]:
        """Variables that have to be JSON and are none, and why: pydantic-settings names their section alone."""
        source = EnvSettingsSource(self._environment.settings_cls)
        for variable, value in self._environment.env_vars.items():
            source.env_vars = {variable: value}
            try:
                source()
            except SettingsError as error:
                yield _as_set(variable), str(error.__cause__)
            except RecursionError:
                yield _as_set(variable), "it is nested too deeply"

    def _variable(self, keys: Keys) -> str | None:
        """The variable of the key itself, else of a section around it, whose value is JSON."""
        for depth in range(len(keys), 0, -1):
            wanted = f"{self._environment.env_prefix}{'__'.join(keys[:depth])}".lower()
            told = self._environment.env_vars.get(wanted)
            if told is not None and (depth == len(keys) or _has(_from_json(told), keys[depth:])):
                return _as_set(wanted)
        return None


def config_file(path: Path) -> Path:
    """`path`, or the file that ships under that name, as `smollm2` does."""
    shipped = SHIPPED_CONFIGS / f"{path}.yaml"
    if path.is_file() or not shipped.is_file():
        return path
    return shipped


def _as_set(variable: str) -> str:
    """`variable` as the environment spells it: small letters mean the same."""
    return next(name for name in os.environ if name.lower() == variable)


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _has(values: Any, keys: Keys) -> bool:
    for key in keys:
        if isinstance(values, list) and key.isdigit() and int(key) < len(values):
            values = values[int(key)]
        elif isinstance(values, Mapping) and key in values:
            values = values[key]
        else:
            return False
    return True


def _read(path: Path) -> tuple[dict[str, Any], dict[Keys, int]]:
    """What the file says, and the line of each of its keys."""
    try:
        text = path.read_text(encoding="utf-8")  # as YAML is, whatever the locale
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except FileNotFoundError as error:
        names = ", ".join(sorted(file.stem for file in SHIPPED_CONFIGS.glob("*.yaml")))
        raise ConfigError(f"no configuration file at {path}, and none of those that ship: {names}") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{path} cannot be read: {reason}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        says = " ".join(str(getattr(error, "problem", None) or error).split())
        raise ConfigError(f"{where}: not valid YAML: {says}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: is nested too deeply") from error
    except ValueError as error:
        raise ConfigError(f"{path}: holds a value that is none of its kind: {error}") from error
    if not isinstance(values, dict | None):
        kind = type(values).__name__
        raise ConfigError(f"{path}: holds a {kind}, and not keys with values, such as `target: smollm2`")
    return values or {}, dict(_lines(path, tree, (), (), set()))


def _lines(
    path: Path, node: yaml.Node | None, above: Keys, around: tuple[yaml.Node | None, ...], known: set[yaml.Node]
) -> Iterator[tuple[Keys, int]]:
    """`around` are the nodes that `node` is in: an alias may lead back to one. Of those `known` no line is told."""
    if node in known:  # by another alias: ten levels of ten of them would be ten thousand million lines
        return
    if isinstance(node, yaml.CollectionNode):
        known.add(node)
    within = (*around, node)
    for key, line, member in _members(path, node, above):
        keys = (*above, key)
        if member in within:
            raise ConfigError(f"{path}:{line}: {'.'.join(keys)}: holds itself")
        yield keys, line
        yield from _lines(path, member, keys, within, known)


def _members(path: Path, node: yaml.Node | None, above: Keys) -> Iterator[tuple[str, int, yaml.Node]]:
    """What stands in a list or mapping: its key, the key's line, and itself."""
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield str(index), item.start_mark.line + 1, item
    if not isinstance(node, yaml.MappingNode):
        return
    seen: set[str] = set()
    for name, value in node.value:
        line, key = name.start_mark.line + 1, str(name.value)
        where = f"{path}:{line}: {'.'.join((*above, key))}"
        if name.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
            raise ConfigError(f"{where}: is no text, as a key has to be")
        if key in seen:
            raise ConfigError(f"{where}: stands here for the second time")
        seen.add(key)
        yield key, line, value
