"""The champion's adapter, which a job is compared with and goes on from."""

import logging
from dataclasses import replace

from hotdraft.pipeline.config.learning import DistillConfig
from hotdraft.pipeline.models.adapter_folder import (
    AdapterBase,
    AdapterError,
    LoadedAdapter,
    OtherBaseError,
    Quantization,
    load_adapter,
)
from hotdraft.pipeline.store.errors import RegistryError
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.fit.lora import target_modules
from hotdraft.training.judging.served_draft import ServedDraft

logger = logging.getLogger(__name__)


def with_parent(draft: ServedDraft, registry: AdapterRegistry, version: int) -> ServedDraft:
    """`draft` with the adapter `version` as its parent; without one if that is 0, does not fit or is lost."""
    try:
        return replace(draft, parent=load_version(draft, registry, version))
    except (AdapterError, RegistryError) as error:
        logger.warning("starting afresh: version %d cannot be gone on from: %s", version, error)
        return draft


def load_version(draft: ServedDraft, registry: AdapterRegistry, version: int) -> LoadedAdapter | None:
    """The adapter `version`; None if that is 0. Raises `AdapterError` if it does not fit, and `RegistryError`.

    What was fetched and is spoiled is fetched once more.
    """
    if not version:
        return None
    base, folder = AdapterBase.of(draft.base, draft.fingerprint), registry.download(version)
    try:
        return load_adapter(folder, base)
    except OtherBaseError:
        raise
    except AdapterError:
        registry.fetched.discard(folder)
        return load_adapter(registry.download(version), base)


def initial_adapter(
    draft: ServedDraft, unproven: LoadedAdapter | None, distill: DistillConfig, quantization: Quantization
) -> LoadedAdapter | None:
    """What a job is to start from: the `unproven` adapter that the one before left, or else the parent's."""
    initial = unproven or draft.parent
    if initial is None or not distill.continue_from_champion:
        return None
    card, lora = initial.card, distill.lora
    names = target_modules(draft.base, lora.target_modules)
    settings = (card.quantization, card.rank, card.alpha, card.target_modules)
    if settings != (quantization, lora.rank, lora.alpha, names):
        logger.warning("starting afresh: the champion was trained with other LoRA settings")
        return None
    return initial
