"""What a process that runs job after job keeps between them, so that a burst costs little more than its steps."""

import torch

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import fingerprint
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.batches.mixture import held_out_in_mixture
from hotdraft.training.judging.evidence import Known, VersionScores
from hotdraft.training.judging.served_draft import ServedDraft, load_draft

MOST_SCORES = 10_000
"""That are kept: some of a few hundred requests each."""


class Resident:
    """The draft, which is loaded again if its weights change, and what versions were found to do on requests."""

    def __init__(self) -> None:
        self._draft: ServedDraft | None = None
        self.scores: Known = {}

    def warm(self, name: str, config: HotdraftConfig, registry: AdapterRegistry) -> None:
        """Have at hand what the first job will ask for: the draft, and what it does on what it brings with it.

        Raises as `load_draft` does, `RegistryError` if the champion cannot be had, and `StoreError`.
        """
        draft, judges = self.draft(name, config), held_out_in_mixture(config)
        VersionScores(draft, registry, config.distill, judges, self.scores).of_champion(registry.champion())

    def draft(self, name: str, config: HotdraftConfig) -> ServedDraft:
        """On `distill.threads` threads. Raises as `load_draft` does."""
        if config.distill.threads is not None:
            torch.set_num_threads(config.distill.threads)
        if self._draft is None or self._draft.fingerprint != fingerprint(name):
            self._draft = load_draft(name, config)
            self.scores.clear()
        if sum(map(len, self.scores.values())) > MOST_SCORES:
            self.scores.clear()
        return self._draft
