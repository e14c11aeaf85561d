"""Small files that must never be half written, and may be read broken nevertheless."""

import errno
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from hotdraft.pipeline.system.whole_file import appearing

T = TypeVar("T")

Seconds = Annotated[float, Field(ge=0, lt=2**33)]
"""Unix time, before the year 2243."""


class BrokenFileError(ValueError):
    """A file that does not hold what it should; the message names it."""


def read_json(path: Path, kind: type[T]) -> T:
    """The dataclass `kind` that `path` holds; keys that it does not know are passed over.

    Raises `FileNotFoundError`, and `BrokenFileError` for whatever else is there: cut short, not JSON, other types.
    """
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes(), strict=True)
    except FileNotFoundError:
        raise
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise BrokenFileError(f"{path} is broken: {where and where + ': '}{first['msg']}") from error
    except OSError as error:
        raise BrokenFileError(f"{path} cannot be read: {error.strerror}") from error


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write `content`, which appears whole, in a folder that is made if need be, and stays if the power goes."""
    with appearing(path) as temporary, temporary.open("wb") as file:
        file.write(_encoded(content))
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def rewrite_json(path: Path, content: Mapping[str, object]) -> None:
    """Write `content` in the place of what `path` holds, by one write: a full disk has no other.

    Raises OSError where that place is too small, and nothing has changed.
    """
    data = _encoded(content)
    with path.open("rb+", buffering=0) as file:
        held = os.fstat(file.fileno())
        if len(data) > 512 * held.st_blocks:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        file.write(data.ljust(held.st_size))


def _encoded(content: Mapping[str, object]) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"


def sync_folder(folder: str | Path) -> None:
    """Have the names in `folder` on the disk, if it can: a rename is lost with the power until then."""
    with suppress(OSError):  # not every file system can, and what was renamed is there
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
