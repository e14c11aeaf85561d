"""The champion's adapter, which a job is compared with and goes on from."""

import logging
from dataclasses import replace

from pipeline.adapters import AdapterBase, AdapterError, LoadedAdapter, Quantization, load_adapter
from pipeline.config import DistillConfig
from pipeline.registry import AdapterRegistry
from training.lora import target_modules
from training.served_draft import ServedDraft

logger = logging.getLogger(__name__)


def with_parent(draft: ServedDraft, registry: AdapterRegistry, version: int, rank: int) -> ServedDraft:
    """`draft` with the adapter `version` as its parent; without one if that is 0 or does not fit."""
    if not version:
        return draft
    try:
        folder = registry.download(version)
        parent = load_adapter(folder, AdapterBase.of(draft.base, draft.fingerprint), rank)
    except AdapterError as error:
        logger.warning("starting afresh: version %d does not fit the configuration: %s", version, error)
        return draft
    return replace(draft, parent=parent)


def initial_adapter(draft: ServedDraft, distill: DistillConfig, quantization: Quantization) -> LoadedAdapter | None:
    """The parent's adapter, where a job is to start from it and may."""
    if draft.parent is None or not distill.continue_from_champion:
        return None
    card, lora = draft.parent.card, distill.lora
    names = target_modules(draft.base, lora.target_modules)
    if (card.quantization, card.alpha, card.target_modules) != (quantization, lora.alpha, names):
        logger.warning("starting afresh: the champion was trained with other LoRA settings")
        return None
    return draft.parent
