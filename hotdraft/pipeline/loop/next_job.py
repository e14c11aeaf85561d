"""What the trainer waits for before its next job, for whoever asks: it alone counts that."""

import logging
from dataclasses import asdict, dataclass
from pathlib import Path

from hotdraft.pipeline.system.json_file import BrokenFileError, read_json, write_json

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _NextJob:
    says: str


class NextJobFile:
    """`<run_dir>/next_job.json`. Trouble with it is logged, not raised."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / "next_job.json"
        self._told = self._refused = ""

    def tell(self, says: str) -> None:
        """Write what a trigger's decision `says`, if that is news, or could not be written yet."""
        if says == self._told:
            return
        try:
            write_json(self._path, asdict(_NextJob(says)))
            self._told = says
        except OSError as error:
            if says != self._refused:
                logger.warning("%s could not be written: %s", self._path, error)
            self._refused = says

    def read(self) -> str | None:
        """None as long as no trainer has said anything."""
        try:
            return read_json(self._path, _NextJob).says
        except (FileNotFoundError, BrokenFileError):
            return None
