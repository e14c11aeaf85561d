"""Which adapter served last, for a server that starts while the registry cannot be asked.

The registry alone says which version serves; this only stands in until it answers.
"""

import logging
from pathlib import Path

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from hotdraft.pipeline.system.json_file import write_json

logger = logging.getLogger(__name__)


class LastServed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    version: PositiveInt
    folder: Path
    """Its files on this machine."""


class LastServedFile:
    """`<run_dir>/last_served.json`; none if the draft itself served last. Trouble with it is logged, not raised."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / "last_served.json"

    def read(self) -> LastServed | None:
        try:
            return LastServed.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except (ValidationError, OSError) as error:
            logger.warning("%s does not say which adapter served last: %s", self._path, error)
            return None

    def write(self, version: int, folder: Path | None) -> None:
        """`version` serves, from `folder`; no adapter serves if that is None."""
        try:
            if folder is None:
                self._path.unlink(missing_ok=True)
            else:
                write_json(self._path, {"version": version, "folder": str(folder.absolute())})
        except OSError as error:
            logger.warning("%s cannot be written: %s", self._path, error)
