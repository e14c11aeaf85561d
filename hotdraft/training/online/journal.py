"""What a job remembers on disk, so that a killed one is finished and not begun again.

`<run_dir>/jobs/<id>/job.json` exists from a job's start to its verdict, beside its checkpoints.
`<run_dir>/jobs/last.json` tells of the last finished job: when it ended, whether its adapter was accepted, and the
newest request that it saw. What cannot be read is set aside as `<run_dir>/jobs/*.broken`. A folder goes by way of
`<run_dir>/jobs/dropped`, so that one half deleted is known for what it is.
"""

import hashlib
import json
import logging
import re
import shutil
import time
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.job_record import Burst, LastJob
from hotdraft.pipeline.models.loading import fingerprint
from hotdraft.pipeline.system.json_file import BrokenFileError, read_json, write_json

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 3


JOB_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")
"""As `pipeline.loop.jobs` gives them."""


@dataclass(frozen=True)
class _Last:
    """What `last.json` holds; older ones name the request alone."""

    last_request: str
    ended_at: float | None = None
    accepted: bool = False
    refused_in_a_row: int = 0
    burst: bool = False


@dataclass(frozen=True)
class JobState:
    """What a resumed job must not decide again."""

    job_id: str
    recipe: str
    """Digest of all that decides what the job learns from and is judged by."""
    last_request: str
    """The newest request the job knows; later ones belong to the next job."""
    parent_version: int
    run_id: str
    """The MLflow run; empty until it is made."""
    burst: Burst | None = None
    attempts: int = 0
    """Times the job was started since it last got on well."""


class JobJournal:
    """The jobs of one run directory. Only whoever runs one, see `pipeline.loop.jobs`, may write."""

    def __init__(self, config: HotdraftConfig) -> None:
        self.folder = config.run_dir / "jobs"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._config = config

    @cached_property
    def recipe(self) -> str:
        """That of `JobState`, under the present configuration and with the draft's present weights."""
        config = self._config
        parts = {
            "target": config.target,
            "draft": config.draft,
            "weights": None if config.draft is None else fingerprint(config.draft),
            "dtype": config.dtype,
            "draft_vocab_size": config.engine.draft_vocab_size,
            "held_out_fraction": config.replay.held_out_fraction,
            "distill": config.distill.recipe(),
            "gate": config.gate.model_dump(mode="json", exclude={"wait_seconds"}),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

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

    def finish(self, state: JobState, *, accepted: bool, hopeless: bool = False) -> None:
        before = self.last_job()
        refused = 1 + (0 if before is None else before.refused_in_a_row) if hopeless else 0
        last = _Last(state.last_request, time.time(), accepted, refused, burst=state.burst is not None)
        write_json(self.folder / "last.json", asdict(last))
        self.drop(state)

    def drop(self, state: JobState) -> None:
        """Forget a job that is not to be gone on with; what it would have learned from is new still."""
        self.remove(self.job_folder(state))

    def remove(self, folder: Path) -> None:
        """Delete a job's folder, or what a process that was killed left of it."""
        dropped = self.folder / "dropped" / folder.name
        if folder != dropped:
            dropped.parent.mkdir(exist_ok=True)
            folder.rename(dropped)
        shutil.rmtree(dropped)

    def leftovers(self) -> list[Path]:
        """Folders of jobs that are no more, or of which nothing is known."""
        known = [path for path in self.folder.iterdir() if JOB_ID.fullmatch(path.name) and path.is_dir()]
        return [*self.folder.glob("dropped/*"), *(path for path in known if not (path / "job.json").is_file())]

    def last_job(self) -> LastJob | None:
        """The job that was finished last."""
        path = self.folder / "last.json"
        try:
            last = read_json(path, _Last)
            ended_at = path.stat().st_mtime if last.ended_at is None else last.ended_at
        except FileNotFoundError:
            return None
        except BrokenFileError as error:
            self._set_aside(path, path.name, error)
            return None
        return LastJob(last.last_request, ended_at, last.accepted, last.refused_in_a_row, last.burst)

    def _states(self) -> list[JobState]:
        return [
            state for path in sorted(self.folder.glob("*/job.json")) if (state := self._state(path)) is not None
        ]

    def _state(self, path: Path) -> JobState | None:
        try:
            state = read_json(path, JobState)
            if state.job_id != path.parent.name:
                raise BrokenFileError(f"{path} is broken: it is of job {state.job_id!r}")
        except FileNotFoundError:
            return None
        except BrokenFileError as error:
            self._set_aside(path, f"{path.parent.name}-{path.name}", error)
            return None
        return state

    def _set_aside(self, path: Path, name: str, error: BrokenFileError) -> None:
        aside = self.folder / f"{name}.broken"
        logger.warning("%s; it is set aside as %s", error, aside)
        path.replace(aside)

    def _why_given_up(self, state: JobState) -> str | None:
        if state.recipe != self.recipe:
            return "the configuration has changed since"
        return f"it died {state.attempts} times" if state.attempts >= MAX_ATTEMPTS else None
