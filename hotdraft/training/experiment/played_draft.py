"""The draft of an experiment as it would be served: with the champion's adapter."""

from collections.abc import Sequence

import numpy as np

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.adapter_folder import LoadedAdapter
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.experiment.play import Played, play
from hotdraft.training.judging.parent import load_version
from hotdraft.training.judging.served_draft import ServedDraft, load_draft


class PlayedDraft:
    """It follows the champion when told to."""

    def __init__(self, config: HotdraftConfig, registry: AdapterRegistry) -> None:
        assert config.draft is not None
        self.version = 0
        self._config = config
        self._registry = registry
        self._draft: ServedDraft = load_draft(config.draft, config)
        self._adapter: LoadedAdapter | None = None
        self._generator = np.random.default_rng(config.distill.seed)

    def follow_champion(self) -> bool:
        """Swap, if there is a new champion; says whether there was one."""
        version = self._registry.champion()
        if version == self.version:
            return False
        self.take_up(version)
        return True

    def take_up(self, version: int) -> None:
        """Draft with `version` from now on. Raises `AdapterError` and `RegistryError`."""
        self._adapter = load_version(self._draft, self._registry, version)
        self.version = version

    def play(self, samples: Sequence[ReplaySample]) -> list[Played]:
        chances = self._draft.chances(self._adapter, samples, self._config.distill.batch_tokens)
        return [
            play(sample, chance, k=self._config.experiment.k, draft_version=self.version, generator=self._generator)
            for sample, chance in zip(samples, chances, strict=True)
        ]

    def acceptance_by_domain(self, samples: Sequence[ReplaySample]) -> dict[str, float]:
        accepted: dict[str, int] = {}
        drafted: dict[str, int] = {}
        for played in self.play(samples):
            domain = played.sample.domain
            accepted[domain] = accepted.get(domain, 0) + played.accepted
            drafted[domain] = drafted.get(domain, 0) + played.drafted
        return {domain: accepted[domain] / count for domain, count in drafted.items() if count}
