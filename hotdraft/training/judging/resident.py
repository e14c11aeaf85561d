"""What a process that runs job after job keeps between them, so that a burst costs little more than its steps."""

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import fingerprint
from hotdraft.training.judging.evidence import Known
from hotdraft.training.judging.served_draft import ServedDraft, load_draft

MOST_SCORES = 10_000
"""That are kept: some of a few hundred requests each."""


class Resident:
    """The draft, which is loaded again if its weights change, and what versions were found to do on requests."""

    def __init__(self) -> None:
        self._draft: ServedDraft | None = None
        self.scores: Known = {}

    def draft(self, name: str, config: HotdraftConfig) -> ServedDraft:
        """Raises as `load_draft` does."""
        if self._draft is None or self._draft.fingerprint != fingerprint(name):
            self._draft = load_draft(name, config)
            self.scores.clear()
        if sum(map(len, self.scores.values())) > MOST_SCORES:
            self.scores.clear()
        return self._draft
