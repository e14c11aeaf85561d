"""The draft that a job improves: what it computes and may propose when served with an adapter."""

from collections.abc import Sequence
from dataclasses import dataclass, field
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
from hotdraft.training.scoring.layer_span import is_divisible
from hotdraft.training.scoring.lower_layers import LowerLayers, LowerStates, lower_name
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
    lower: int = 0
    """Layers that a burst leaves alone; 0 where it adapts all."""
    lower_states: LowerStates = field(default_factory=LowerStates)

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
        parts, model = [in_windows(sample, self.window) for sample in samples], self.model(adapter)
        found = iter(
            expected_acceptance_by_position(
                model,
                list(chain(*parts)),
                batch_tokens=batch_tokens,
                vocabulary=self.head(adapter),
                lower=self._shared_lower(adapter, model),
            )
        )
        return [np.concatenate(list(islice(found, len(of_sample)))) for of_sample in parts]

    def lower_layers(self, adapter: LoadedAdapter | None) -> LowerLayers | None:
        """Those that a burst leaves alone which goes on from `adapter`; None if it adapts all."""
        if not self.lower:
            return None
        return LowerLayers(self.model(adapter), self.lower, self._lower_name(adapter), self.lower_states)

    def _shared_lower(self, adapter: LoadedAdapter | None, model: PreTrainedModel) -> LowerLayers | None:
        """Those that are the parent's or the draft's own with `adapter` too: of others, nothing is read twice."""
        if not self.lower or (name := self._lower_name(adapter)) not in (b"", self._lower_name(self.parent)):
            return None
        return LowerLayers(model, self.lower, name, self.lower_states)

    def _lower_name(self, adapter: LoadedAdapter | None) -> bytes:
        return lower_name(self.base, self.lower, adapter)

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
    engine, layers = config.engine, base.config.get_text_config().num_hidden_layers
    lower = int(layers * (1 - config.distill.burst_layers))
    return ServedDraft(
        base,
        fingerprint(name),
        engine.draft_vocab_size,
        ranking,
        engine.served_window,
        lower=lower if is_divisible(base, lower) else 0,
    )
