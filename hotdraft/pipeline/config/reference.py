"""The reference of the configuration as Markdown: every key with what it may be, its default and its meaning."""

import json
from collections.abc import Iterator
from typing import Any

from hotdraft.pipeline.config.settings import HotdraftConfig

HEAD = """# Configuration

Made by `hotdraft config reference`. A YAML file is overridden by environment variables (`HOTDRAFT_ENGINE__K=2` is
`engine.k`), and these by flags; `hotdraft config show` says what a value comes to, and from where.
"""

_BOUNDS = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "exclusiveMaximum": "< {}"}
_WORDS = {"string": "text", "boolean": "true, false", "null": "none", "object": "mapping"}


def reference() -> str:
    """A table of the top-level keys, then one of each section."""
    schema = HotdraftConfig.model_json_schema()
    sections = {
        name: schema["$defs"][_section(field)] for name, field in schema["properties"].items() if _section(field)
    }
    top = {name: field for name, field in schema["properties"].items() if name not in sections}
    parts = [HEAD, _table(top, schema)]
    for name, section in sections.items():
        parts.append(f"## {name}\n\n{_table(dict(_flat(section, schema)), schema)}")
    return "\n".join(parts)


def _section(field: dict[str, Any]) -> str | None:
    """The name of the section's definition; None for a plain key."""
    return field["$ref"].rpartition("/")[2] if "$ref" in field else None


def _flat(section: dict[str, Any], schema: dict[str, Any], above: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, field in section["properties"].items():
        key = above + name
        if _section(field) is None:
            yield key, field
        while isinstance(members := field.get("items") or field.get("additionalProperties"), dict):
            key += "[]" if "items" in field else ".NAME"
            field = members
        if inner := _section(field):
            yield from _flat(schema["$defs"][inner], schema, f"{key}.")


def _table(fields: dict[str, dict[str, Any]], schema: dict[str, Any]) -> str:
    rows = ["| key | allowed | default | meaning |", "| --- | --- | --- | --- |"]
    for name, field in fields.items():
        default = f"`{json.dumps(field['default'])}`" if field.get("default") is not None else ""
        meaning = field.get("description", "").replace("\n", " ").replace("|", "\\|")
        rows.append(f"| `{name}` | {_allowed(field, schema)} | {default} | {meaning} |")
    return "\n".join(rows) + "\n"


def _allowed(field: dict[str, Any], schema: dict[str, Any]) -> str:
    if "$ref" in field:
        return _section(field) or ""
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_allowed(one, schema) for one in field["anyOf"]))
    if "enum" in field or "const" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    kind = field.get("type", "")
    if kind == "array":
        return f"list of {_allowed(field['items'], schema)}"
    bounds = ", ".join(says.format(f"{field[bound]:g}") for bound, says in _BOUNDS.items() if bound in field)
    return " ".join(filter(None, [_WORDS.get(kind, kind), bounds]))
