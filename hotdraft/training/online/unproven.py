"""What a job leaves to the next one that was on a good way, but whose gain could not be shown yet.

`<run_dir>/jobs/unproven` holds its adapter, which champion that was judged against, and what says whose answers to
which prompts it was taught, by which no candidate may be judged. Bursts of few steps gain little each, and few
requests show a great gain only: the next goes on from there, and its gain is that of both.
"""

import logging
import shutil
from dataclasses import asdict, dataclass

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.adapter_folder import AdapterBase, AdapterError, LoadedAdapter, load_adapter
from hotdraft.pipeline.system.json_file import BrokenFileError, read_json, write_json
from hotdraft.training.judging.served_draft import ServedDraft
from hotdraft.training.online.publish import Judged

logger = logging.getLogger(__name__)

RECORD, ADAPTER = "unproven.json", "adapter"


@dataclass(frozen=True)
class _Record:
    champion: int
    target: str
    held_out_fraction: float


class Unproven:
    """For whoever runs the job of a run directory."""

    def __init__(self, config: HotdraftConfig) -> None:
        self._config = config
        self._folder = config.run_dir / "jobs" / "unproven"

    def settle(self, judged: Judged) -> None:
        """Keep the candidate that was judged, or forget what there was: it is served now, or leads nowhere."""
        shutil.rmtree(self._folder, ignore_errors=True)
        if judged.verdict.is_promising and judged.champion is not None and judged.folder is not None:
            shutil.copytree(judged.folder, self._folder / ADAPTER)
            write_json(self._folder / RECORD, asdict(self._beside(judged.champion)))

    def beside(self, champion: int, draft: ServedDraft) -> LoadedAdapter | None:
        """What was left, if that was judged against this `champion`, of what no job is judged by now, and fits the
        draft."""
        try:
            if read_json(self._folder / RECORD, _Record) != self._beside(champion):
                return None
            return load_adapter(self._folder / ADAPTER, AdapterBase.of(draft.base, draft.fingerprint))
        except FileNotFoundError:
            return None
        except (AdapterError, BrokenFileError) as error:
            logger.warning("starting from the champion: what the last job left does not fit: %s", error)
            return None

    def _beside(self, champion: int) -> _Record:
        return _Record(champion, self._config.target, self._config.replay.held_out_fraction)
