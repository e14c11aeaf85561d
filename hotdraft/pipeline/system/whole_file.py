"""Files that appear whole, or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """Where to write what becomes `path` at the end, in a folder that is made if need be.

    Nothing is left of what an OSError ends, as on a full disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    try:
        yield temporary
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
