"""What a draft is pre-distilled on, as a user names it: prompts to answer and texts to score.

A source is one of

- a JSONL file in the traffic form (see `pipeline.traffic.prompts`);
- a folder of text: its `*.txt` and `*.md` files, however deep;
- a folder with a data set: one that `save_to_disk` of `datasets` wrote, or one with Parquet, JSON or JSONL
  files, which makes it a data set whatever else is in it;
- the name of a data set on the hub.

A data set may say which part is meant: `path[:name[:split]]`, with all that `datasets` knows of splits
(`path::train[:1000]`). Its rows are prompts if it has one of `PROMPT_COLUMNS`, texts if it has `text`.
Rows that are empty there are passed over; a `domain` column overrules the source's name.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, load_dataset, load_from_disk
from datasets.exceptions import DatasetsError
from huggingface_hub.errors import HTTPError

from hotdraft.pipeline.models.names import HubAwayError, is_refusal
from hotdraft.pipeline.traffic.prompts import ROLES, Prompt, TrafficError, ask, read_traffic

logger = logging.getLogger(__name__)

PROMPT_COLUMNS = ("messages", "prompt", "question", "instruction")
"""The first that a data set has holds its prompts: strings, or conversations of role and content."""
TEXT_COLUMN = "text"
DATA_SUFFIXES = {".parquet", ".json", ".jsonl"}
TEXT_SUFFIXES = {".txt", ".md"}
SAVED, SAVED_SPLITS = "state.json", "dataset_dict.json"
DEFAULT_SPLIT = "train"


class SourceError(ValueError):
    """A source that cannot be learned from; the message names it and says what would do."""


@dataclass(frozen=True)
class Text:
    """A document, to be scored as it is."""

    domain: str
    text: str


def read_sources(sources: Sequence[str]) -> list[Prompt | Text]:
    """All prompts and texts of `sources`, in their order. Raises `SourceError`, or `HubAwayError`."""
    return [item for source in sources for item in _read(source)]


def _read(source: str) -> list[Prompt | Text]:
    if Path(source).is_file():
        try:
            return list(read_traffic(source))
        except TrafficError as error:
            raise SourceError(str(error)) from error
    path, _, part = source.partition(":")
    if Path(source).is_dir():
        path, part = source, ""
    folder = Path(path)
    if folder.is_dir() and not _files(folder, DATA_SUFFIXES):
        if part:
            raise SourceError(f"{path} is a folder of text, which has no {part!r}")
        items = list(_texts(folder))
    else:
        name, _, split = part.partition(":")
        items = list(_items(source, folder.resolve().name, _dataset(path, name, split)))
    if not items:
        raise SourceError(f"{source} holds no prompt and no text: all of it is empty")
    return items


def _files(folder: Path, suffixes: set[str]) -> list[Path]:
    """Files of these kinds, however deep, outside anything hidden."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in suffixes
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def _texts(folder: Path) -> Iterator[Prompt | Text]:
    files = _files(folder, TEXT_SUFFIXES)
    if not files:
        kinds = ", ".join(f"*{suffix}" for suffix in sorted(TEXT_SUFFIXES | DATA_SUFFIXES))
        raise SourceError(f"{folder} holds none of the files that can be learned from: {kinds}")
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise SourceError(f"{path} is not UTF-8 text: {error}") from error
        if text.strip():
            yield Text(folder.resolve().name, text)


def _dataset(path: str, name: str, split: str) -> Dataset:
    folder = Path(path)
    try:
        if folder.is_dir() and any((folder / file).is_file() for file in (SAVED, SAVED_SPLITS)):
            return _saved(folder, name, split)
        if not folder.is_dir() and _looks_local(path):
            raise SourceError(f"no file or folder at {path!r}")
        if not folder.is_dir():  # which takes half a minute where it does not answer
            logger.info("no file or folder here is called %s: asking the hub for a data set", path)
        return load_dataset(path, name or None, split=split or DEFAULT_SPLIT)
    except SourceError:
        raise
    # RuntimeError: a data set that wants to run code of its own
    except (OSError, ValueError, RuntimeError, DatasetsError, HTTPError) as error:
        if folder.is_dir():
            raise SourceError(f"{path!r} cannot be read as a data set: {error}") from error
        if isinstance(error, (ConnectionError, HTTPError)) and not is_refusal(error):
            raise HubAwayError(f"{path!r} is no file or folder, and the hub does not answer: {error}") from error
        raise SourceError(f"{path!r} is no file or folder, nor found on the hub: {error}") from error


def _looks_local(path: str) -> bool:
    known = DATA_SUFFIXES | TEXT_SUFFIXES
    name = Path(path)
    is_below = len(name.parts) == 2 and name.parent.is_dir()  # else its owner's on the hub
    return path.startswith((".", "/", "~")) or path.count("/") > 1 or name.suffix.lower() in known or is_below


def _saved(folder: Path, name: str, split: str) -> Dataset:
    saved = load_from_disk(folder)
    if isinstance(saved, DatasetDict) and not name:
        if (split or DEFAULT_SPLIT) not in saved:
            raise SourceError(f"{folder} has no split {split or DEFAULT_SPLIT!r}; it has {sorted(saved)}")
        return saved[split or DEFAULT_SPLIT]
    if name or split:
        raise SourceError(f"{folder} was saved without a part called {name or split!r}")
    return saved


def _items(source: str, domain: str, rows: Dataset) -> Iterator[Prompt | Text]:
    column = next((name for name in (*PROMPT_COLUMNS, TEXT_COLUMN) if name in rows.column_names), None)
    if column is None:
        raise SourceError(
            f"{source} has the columns {rows.column_names}; learning from it takes one of "
            f"{list(PROMPT_COLUMNS)} for prompts or {TEXT_COLUMN!r} for texts"
        )
    kept = [name for name in (column, "domain") if name in rows.column_names]
    for number, row in enumerate(rows.select_columns(kept)):
        value = row[column]
        row_domain = str(row.get("domain") or domain)
        try:
            if column == TEXT_COLUMN:
                if _is_said(value):
                    yield Text(row_domain, value)
            elif isinstance(value, list):
                if messages := _conversation(value):
                    yield Prompt(row_domain, messages)
            elif _is_said(value):
                yield ask(row_domain, value)
        except ValueError as error:
            raise SourceError(f"{source}: row {number}, column {column!r}: {error}") from error


def _is_said(value: Any) -> bool:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"expected text, got {type(value).__name__}")
    return bool(value and value.strip())


def _conversation(value: list[Any]) -> list[dict[str, str]]:
    """The messages up to what the assistant said last, which the target is to say in its own words."""
    messages = []
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise ValueError("each message must have a text as its content")
        if message.get("role") not in ROLES:
            raise ValueError(f"a message's role must be one of {sorted(ROLES)}, not {message.get('role')!r}")
        messages.append({"role": message["role"], "content": message["content"]})
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    return messages
