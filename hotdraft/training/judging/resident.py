"""What a process that runs job after job keeps between them, so that a burst costs little more than its steps."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import fingerprint
from hotdraft.pipeline.replay.draft_window import in_windows
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.batches.mixture import split_mixture
from hotdraft.training.batches.packing import PackedBatch
from hotdraft.training.judging.evidence import Known, VersionScores, tell
from hotdraft.training.judging.parent import with_parent
from hotdraft.training.judging.served_draft import ServedDraft, load_draft
from hotdraft.training.judging.teachers import teachers_of
from hotdraft.training.scoring.rehearsal import Rehearsal

AT_ONCE = 8
"""Requests of a bit."""
MOST_SCORES = 10_000
"""That are kept: some of a few hundred requests each."""


class Resident:
    """The draft, which is loaded again if its weights change, what versions were found to do on requests, and what
    they say of those that are rehearsed."""

    def __init__(self) -> None:
        self._draft: ServedDraft | None = None
        self.scores: Known = {}
        self.rehearsal = Rehearsal()
        self._directions: dict[bytes, Mapping[str, Tensor]] = {}

    def warm(self, name: str, config: HotdraftConfig, registry: AdapterRegistry) -> Iterator[None]:
        """Have at hand what the first job asks for: the draft, and what it does and says on what it brings along.

        Bit by bit, as a job may be due meanwhile; it ends once that has loaded another draft.
        Raises as `load_draft` does, `RegistryError` if the champion cannot be had, and `StoreError`.
        """
        champion, bare = registry.champion(), self.draft(name, config)
        draft, (learned, judges) = with_parent(bare, registry, champion), split_mixture(config)
        yield
        for start in range(0, len(judges), AT_ONCE):
            if self._draft is not bare:
                return
            some = judges[start : start + AT_ONCE]
            VersionScores(draft, registry, config.distill, some, self.scores).of_champion(champion)
            yield
        if config.distill.older_targets != "best" or not config.distill.older_fraction:
            return
        teachers = teachers_of(draft, champion, registry)
        rehearsed = [in_windows(sample, draft.window)[0] for sample in learned]  # as batches have them
        for start in range(0, len(rehearsed), AT_ONCE):
            if self._draft is not bare:
                return
            self.rehearsal.taught(teachers, rehearsed[start : start + AT_ONCE], config.recorder.top_k)
            yield

    def draft(self, name: str, config: HotdraftConfig) -> ServedDraft:
        """On `distill.threads` threads. Raises as `load_draft` does."""
        if config.distill.threads is not None:
            torch.set_num_threads(config.distill.threads)
        if self._draft is None or self._draft.fingerprint != fingerprint(name):
            self._draft = load_draft(name, config)
            self._forget()
        if sum(map(len, self.scores.values())) > MOST_SCORES:
            self.scores.clear()
        return self._draft

    def note(self, version: int, samples: Sequence[ReplaySample], scores: np.ndarray) -> None:
        """What `version` does on `samples`, scores [S], now that it is published. If one of its number was known,
        the registry was made anew, and so are the others."""
        if version in self.scores:
            self._forget()
        tell(self.scores, version, samples, scores)

    def directions(self, batch: PackedBatch, find: Callable[[], Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
        """What `find` finds on `batch`, or found when it was asked for that last: the layers of versions that leave
        older requests alone are given much the same on them."""
        tokens = batch.input_ids.numpy().tobytes()
        if tokens not in self._directions:
            self._directions = {tokens: find()}
        return self._directions[tokens]

    def _forget(self) -> None:
        self.scores.clear()
        self.rehearsal.forget()
        self._directions.clear()
