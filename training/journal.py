"""What a job remembers on disk, so that a killed one is finished and not begun again.

`<run_dir>/jobs/<id>/job.json` exists from a job's start to its verdict, beside its checkpoints.
`<run_dir>/jobs/last.json` tells of the last finished job: when it ended, whether its adapter was accepted, and the
newest request that it saw.
"""

import hashlib
import json
import logging
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from pipeline.config import HotdraftConfig
from pipeline.json_file import write_json
from pipeline.loop import LastJob

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 3


@dataclass(frozen=True)
class JobState:
    """What a resumed job must not decide again."""

    job_id: str
    recipe: str
    """Digest of the draft and the settings that the job was started with."""
    last_request: str
    """The newest request the job knows; later ones belong to the next job."""
    parent_version: int
    run_id: str
    """The MLflow run."""
    attempts: int = 0
    """Times the job was started since it last got on well."""


class JobJournal:
    """The jobs of one run directory. One process at a time."""

    def __init__(self, config: HotdraftConfig) -> None:
        self.folder = config.run_dir / "jobs"
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = config.distill.model_dump_json(exclude={"trigger", "threads", "nice"})
        self.recipe = hashlib.sha256(f"{config.draft}\n{config.dtype}\n{settings}".encode()).hexdigest()

    def job_folder(self, state: JobState) -> Path:
        return self.folder / state.job_id

    def unfinished(self) -> JobState | None:
        """The job to go on with."""
        for state in self._states():
            if self._why_given_up(state) is None:
                logger.info("going on with the unfinished job %s", state.job_id)
                return state
        return None

    def drop_given_up(self) -> list[JobState]:
        """Forget jobs that are not to be gone on with, begun with other settings or dying again and again."""
        dropped = []
        for state in self._states():
            if (why := self._why_given_up(state)) is not None:
                logger.warning("dropping job %s: %s", state.job_id, why)
                self.drop(state)
                dropped.append(state)
        return dropped

    def save(self, state: JobState) -> None:
        write_json(self.job_folder(state) / "job.json", asdict(state))

    def finish(self, state: JobState, *, accepted: bool) -> None:
        content = {"last_request": state.last_request, "ended_at": time.time(), "accepted": accepted}
        write_json(self.folder / "last.json", content)
        shutil.rmtree(self.job_folder(state))

    def drop(self, state: JobState) -> None:
        """Forget a job that is not to be gone on with; what it would have learned from is new still."""
        shutil.rmtree(self.job_folder(state))

    def last_job(self) -> LastJob | None:
        """The job that was finished last."""
        path = self.folder / "last.json"
        if not path.is_file():
            return None
        content = {"ended_at": path.stat().st_mtime, "accepted": False, **json.loads(path.read_text())}
        return LastJob(content["last_request"], content["ended_at"], content["accepted"])

    def _states(self) -> list[JobState]:
        return [JobState(**json.loads(path.read_text())) for path in sorted(self.folder.glob("*/job.json"))]

    def _why_given_up(self, state: JobState) -> str | None:
        if state.recipe != self.recipe:
            return "the configuration has changed since"
        return f"it died {state.attempts} times" if state.attempts >= MAX_ATTEMPTS else None
