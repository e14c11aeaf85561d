"""The folder of a run, of a name that all who keep their stores in it take for the same place."""

import os
import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from hotdraft.pipeline.config.section import LocalPath

MOST_BYTES = 255
"""Of a name, in any file system of Linux."""


def _run_folder(path: Path) -> Path:
    if re.search("^[a-z][a-z0-9+.-]+:/", str(path)):
        raise ValueError("must be a local folder; replay.url and tracking.uri may be elsewhere")
    if found := re.search("::|[?]|%[0-9A-Fa-f]{2}", str(path.absolute())):
        raise ValueError(
            f"must be a folder without {found[0]}, which is more than a name in the address of a store"
        )
    if re.search("[\ud800-\udfff]", str(path.absolute())):
        raise ValueError("must be a folder whose name is text in this locale, as all are with LC_ALL=C.UTF-8")
    if "\0" in str(path) or any(len(os.fsencode(part)) > MOST_BYTES for part in path.absolute().parts):
        raise ValueError(f"must be a folder without NUL and with names of {MOST_BYTES} bytes at most")
    return Path(os.path.expanduser(path))  # as fsspec would, of the replay buffer alone


RunFolder = Annotated[LocalPath, AfterValidator(_run_folder)]
