"""The draft that a job improves: what it computes and may propose when served with an adapter."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.adapter_folder import LoadedAdapter
from hotdraft.pipeline.models.draft_vocabulary import (
    choose_vocabulary,
    count_answers,
    merge_rankings,
    rank_tokens,
    read_vocabulary,
)
from hotdraft.pipeline.models.loading import choose_device, choose_dtype, fingerprint, load_causal_lm
from hotdraft.pipeline.models.names import local_folder
from hotdraft.pipeline.replay.draft_window import in_windows
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.pipeline.system.array_ring import served_states
from hotdraft.training.fit.lora import merged_model
from hotdraft.training.scoring.evaluate import expected_acceptance_by_position
from hotdraft.training.scoring.target_reader import give_target


@dataclass(frozen=True)
class ServedDraft:
    base: PreTrainedModel
    fingerprint: str
    head_size: int | None
    """Tokens that the served output head covers; None is all."""
    ranking: Tensor | None
    """Of the tokens, most frequent first, as it stands in the draft's folder."""
    window: int | None = None
    """What it reads of a context, see `pipeline.replay.draft_window`."""
    parent: LoadedAdapter | None = None
    """The adapter it is served with now."""

    @property
    def vocab_size(self) -> int:
        return self.base.config.get_text_config().vocab_size

    def model(self, adapter: LoadedAdapter | None) -> PreTrainedModel:
        """The draft with `adapter` merged in."""
        return self.base if adapter is None else merged_model(self.base, adapter)

    def head(self, adapter: LoadedAdapter | None) -> Tensor | None:
        """Ids that the output head covers when served with `adapter`; None is all."""
        return self.covered(None if adapter is None else adapter.vocabulary)

    def covered(self, ranking: Tensor | None) -> Tensor | None:
        """Ids that the output head covers beside an adapter of this `ranking`; None is all."""
        if self.head_size is None:
            return None
        return choose_vocabulary([ranking, self.ranking], self.head_size, self.vocab_size)

    def chances(
        self, adapter: LoadedAdapter | None, samples: Sequence[ReplaySample], batch_tokens: int
    ) -> list[np.ndarray]:
        """Chance [N] of each position's token to be accepted, served with `adapter`; see `scoring.evaluate`."""
        parts = [in_windows(sample, self.window) for sample in samples]
        found = iter(
            expected_acceptance_by_position(
                self.model(adapter), list(chain(*parts)), batch_tokens=batch_tokens, vocabulary=self.head(adapter)
            )
        )
        return [np.concatenate(list(islice(found, len(of_sample)))) for of_sample in parts]

    def rank(self, rows: Dataset) -> Tensor:
        """The tokens of the target's answers in `rows`, most frequent first, and then the draft's own ranking."""
        return merge_rankings([rank_tokens(count_answers(rows, self.vocab_size)), self.ranking])


def load_draft(name: str, config: HotdraftConfig) -> ServedDraft:
    """The draft `name` without an adapter. Raises `ModelError` or `VocabularyError` if it cannot be used."""
    device = choose_device(config.distill.device or config.device)
    if device.type == "cuda" and config.distill.memory_fraction is not None:
        torch.cuda.set_per_process_memory_fraction(config.distill.memory_fraction, device.index)
    base = load_causal_lm(name, dtype=choose_dtype(config.dtype, device), device=device)
    give_target(base, config.target, served_states(config))
    ranking = read_vocabulary(local_folder(name), base.config.get_text_config().vocab_size)
    engine = config.engine
    return ServedDraft(base, fingerprint(name), engine.draft_vocab_size, ranking, engine.served_window)
