"""A version's weights for vLLM's draft, read and checked before anything that serves is touched."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from hotdraft.pipeline.models.adapter_folder import AdapterBase, load_adapter, merged_weights
from hotdraft.pipeline.models.loading import read_tensors


@dataclass(frozen=True)
class DraftVersion:
    """Version 0, the draft itself, has no probe."""

    weights: Mapping[str, Tensor]
    """Of all linear layers, whole, by their names in the draft's file."""
    probe_ids: Tensor | None = None
    """int64 [T]."""
    probe_probs: Tensor | None = None
    """float32 [P, V]: what the trainer's model gave after each of the last P of them."""


class DraftFile:
    """The draft's own weights in `folder`, in transformers' form, whose adapters are known by `fingerprint`."""

    def __init__(self, folder: Path, fingerprint: str, dtype: torch.dtype) -> None:
        self._folder = folder
        self._fingerprint = fingerprint
        self._dtype = dtype

    def version(self, adapter: Path | None) -> DraftVersion:
        """The draft with the adapter in that folder, or without any. Raises `AdapterError` naming what is wrong."""
        own = {
            name: weight.to(self._dtype) for name, weight in read_tensors(self._folder) if is_linear(name, weight)
        }
        if adapter is None:
            return DraftVersion(own)
        loaded = load_adapter(adapter, self._base)
        weights = own | dict(merged_weights(own, loaded))
        return DraftVersion(weights, loaded.probe_ids[0], loaded.probe_logits.float().softmax(-1))

    @cached_property
    def _base(self) -> AdapterBase:
        shapes = {name: weight.shape for name, weight in read_tensors(self._folder) if weight.ndim == 2}
        [vocab_size, _] = next(shape for name, shape in shapes.items() if "embed_tokens" in name)
        return AdapterBase(self._fingerprint, vocab_size, shapes)


def is_linear(name: str, weight: Tensor) -> bool:
    """Whether a tensor is the weight of a layer's linear part, and none of embedding, head or norms."""
    return weight.ndim == 2 and any(part.isdigit() for part in name.split("."))
