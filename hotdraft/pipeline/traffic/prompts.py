"""Traffic: the prompts that `hotdraft simulate` plays, as JSON lines.

A line is `{"domain": …, "prompt": … | "messages": …, "max_tokens"?: …, "temperature"?: …}`.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEYS = {"domain", "prompt", "messages", "max_tokens", "temperature"}
ROLES = {"system", "user", "assistant"}


class TrafficError(ValueError):
    """A traffic file that cannot be played; the message names the file, the line and the fault."""


@dataclass(frozen=True)
class Prompt:
    """One chat request; `None` leaves `max_tokens` or `temperature` to whoever plays it."""

    domain: str
    messages: list[dict[str, str]]
    max_tokens: int | None = None
    temperature: float | None = None


def ask(domain: str, text: str) -> Prompt:
    """A prompt of one user message."""
    return Prompt(domain, [{"role": "user", "content": text}])


def read_traffic(path: str | Path) -> list[Prompt]:
    """The prompts of a JSONL file in the file's order; blank lines are skipped.

    Raises `TrafficError` for a missing or empty file and for any line that is not a prompt.
    """
    path = Path(path)
    if not path.is_file():
        raise TrafficError(f"no traffic file at {path}")
    prompts = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode())
                json.dumps(row, ensure_ascii=False).encode()  # JSON can spell half of a surrogate pair
                prompts.append(_prompt(row))
            except json.JSONDecodeError as error:
                raise TrafficError(f"{path}:{number}: a line must be a JSON object: {error}") from error
            except ValueError as error:
                raise TrafficError(f"{path}:{number}: {error}") from error
    if not prompts:
        raise TrafficError(f"{path} holds no prompts")
    return prompts


def write_traffic(path: str | Path, prompts: Iterable[Prompt]) -> None:
    """Write `prompts` in the form that `read_traffic` reads."""
    with Path(path).open("w", encoding="utf-8") as lines:
        for prompt in prompts:
            row: dict[str, Any] = {"domain": prompt.domain, "messages": prompt.messages}
            if prompt.max_tokens is not None:
                row["max_tokens"] = prompt.max_tokens
            if prompt.temperature is not None:
                row["temperature"] = prompt.temperature
            lines.write(json.dumps(row, ensure_ascii=False) + "\n")


def _prompt(row: Any) -> Prompt:
    if not isinstance(row, dict):
        raise ValueError(f"expected a JSON object, got {type(row).__name__}")
    if unknown := sorted(row.keys() - KEYS):
        raise ValueError(f"unknown keys {unknown}; allowed are {sorted(KEYS)}")
    domain = row.get("domain")
    if not isinstance(domain, str) or not domain:
        raise ValueError('"domain" must be a non-empty string')
    if ("prompt" in row) == ("messages" in row):
        raise ValueError('give exactly one of "prompt" and "messages"')
    max_tokens, temperature = row.get("max_tokens"), row.get("temperature")
    if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
        raise ValueError(f'"max_tokens" must be a whole number of at least 1, not {max_tokens!r}')
    if temperature is not None and (type(temperature) not in (int, float) or not 0 <= temperature <= 2):
        raise ValueError(f'"temperature" must be a number from 0 to 2, not {temperature!r}')
    return Prompt(domain, _messages(row), max_tokens, temperature)


def _messages(row: dict[str, Any]) -> list[dict[str, str]]:
    if "prompt" in row:
        if not isinstance(row["prompt"], str) or not row["prompt"]:
            raise ValueError('"prompt" must be a non-empty string')
        return [{"role": "user", "content": row["prompt"]}]
    messages = row["messages"]
    if not isinstance(messages, list) or not messages:
        raise ValueError('"messages" must be a non-empty list')
    for message in messages:
        if not isinstance(message, dict) or message.keys() != {"role", "content"}:
            raise ValueError('each of "messages" must have exactly "role" and "content"')
        if message["role"] not in ROLES:
            raise ValueError(f'"role" must be one of {sorted(ROLES)}, not {message["role"]!r}')
        if not isinstance(message["content"], str):
            raise ValueError('"content" must be a string')
    return messages
