"""What a verdict rests on: requests that no candidate has seen, and what the candidates and versions do on them.

It is kept until the job's version is decided, so that a champion that moved meanwhile is judged against on the same
requests, without training again.
"""

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from hotdraft.pipeline.config.learning import DistillConfig
from hotdraft.pipeline.models.adapter_folder import AdapterError, OtherBaseError
from hotdraft.pipeline.replay.buffer import ReplayBuffer, sample_from_row
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.pipeline.store.errors import RegistryError
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.pipeline.system.json_file import BrokenFileError, read_json, write_json
from hotdraft.training.judging.parent import load_version
from hotdraft.training.judging.served_draft import ServedDraft
from hotdraft.training.scoring.evaluate import by_request

logger = logging.getLogger(__name__)

FOLDER, SCORES = "evidence", "scores.json"


@dataclass(frozen=True)
class _Scores:
    mix: dict[str, float]
    candidates: list[tuple[float, list[float]]]
    offered: int


@dataclass(frozen=True)
class GateEvidence:
    samples: Sequence[ReplaySample]
    """R of them, each of another prompt."""
    mix: Mapping[str, float]
    """Share of each domain in today's traffic."""
    candidates: Mapping[float, np.ndarray]
    """Scores [R], expected acceptance by request, of the candidates that were judged, by their blends."""
    offered: int
    """Of how many the best was to be found."""

    def save(self, job_folder: Path) -> None:
        folder = job_folder / FOLDER
        shutil.rmtree(folder, ignore_errors=True)  # what a job left that was killed here
        ReplayBuffer(str(folder)).append(self.samples)
        scores = [[blend, row.tolist()] for blend, row in self.candidates.items()]
        write_json(folder / SCORES, {"mix": self.mix, "candidates": scores, "offered": self.offered})

    @classmethod
    def load(cls, job_folder: Path) -> Self:
        """What the job in `job_folder` was judged by. Raises as `read_json` does, also where requests are lost."""
        folder = job_folder / FOLDER
        scores = read_json(folder / SCORES, _Scores)
        samples = [sample_from_row(row) for row in ReplayBuffer(str(folder)).load().with_format("numpy")]
        if any(len(row) != len(samples) for _, row in scores.candidates):
            raise BrokenFileError(f"{folder} is broken: {len(samples)} requests are left")
        return cls(samples, scores.mix, {blend: np.array(row) for blend, row in scores.candidates}, scores.offered)


Known = dict[int, dict[str, float]]
"""By version and request: expected acceptance."""


def tell(known: Known, version: int, samples: Sequence[ReplaySample], scores: np.ndarray) -> None:
    """Add to `known` what `version` does on `samples`, scores [S]."""
    found = zip((sample.request_id for sample in samples), scores.tolist(), strict=True)
    known.setdefault(version, {}).update(found)


class VersionScores:
    """Expected acceptance of `samples` from the draft with any version of the registry; each is asked once."""

    def __init__(
        self,
        draft: ServedDraft,
        registry: AdapterRegistry,
        settings: DistillConfig,
        samples: Sequence[ReplaySample],
        known: Known | None = None,
    ) -> None:
        """`known` is what was found before, of the same draft; what is found now is added to it."""
        self._draft = draft
        self._registry = registry
        self._settings = settings
        self._samples = samples
        self._known: Known = {} if known is None else known

    def of_champion(self, version: int) -> np.ndarray:
        """Scores [R]; the draft's own if `version` is of another draft.

        Where its files are spoiled or lost, those of the champion before it that can be read: it stands in for it.
        """
        every = np.ones(len(self._samples), bool)
        try:
            return self._complete(version, every)
        except OtherBaseError as error:
            logger.warning("judging against the draft itself: version %d does not fit: %s", version, error)
            return self._complete(0, every)
        except (AdapterError, RegistryError) as error:
            logger.error("version %d is judged by what stands in for it: %s", version, error)
        for stand_in in self._registry.champions_before(version):
            if (scores := self.of_best(stand_in, every)) is not None:
                return scores
        return self._complete(0, every)

    def of_best(self, version: int, rows: np.ndarray) -> np.ndarray | None:
        """Scores [R], known at `rows` (bool [R]) at least; None if `version` cannot be had or served any more."""
        try:
            return self._complete(version, rows)
        except (AdapterError, RegistryError) as error:
            logger.warning("nothing is held against version %d any more: %s", version, error)
            return None

    def _complete(self, version: int, rows: np.ndarray) -> np.ndarray:
        known = self._known.setdefault(version, {})
        asked = zip(self._samples, rows, strict=True)
        missing = [sample for sample, is_asked in asked if is_asked and sample.request_id not in known]
        if missing:
            adapter = load_version(self._draft, self._registry, version)
            found = by_request(self._draft.chances(adapter, missing, self._settings.batch_tokens))
            tell(self._known, version, missing, found)
        return np.array([known.get(sample.request_id, np.nan) for sample in self._samples])
