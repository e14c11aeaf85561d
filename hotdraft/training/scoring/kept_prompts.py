"""Prompts that a draft has read: the keys and values of its layers, kept from one step to the next.

An answer of fifty tokens after a prompt of two hundred costs a step five times what its own tokens do. A job of
few requests has the same prompts again and again while its weights hardly move: read without gradient, and kept
for some steps, they teach as much a step (docs/learning.md).
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from hotdraft.pipeline.system.transfer import moved
from hotdraft.training.batches.packing import PackedBatch

MOST_BYTES = 2**28
"""Of keys and values that are kept."""


@dataclass(frozen=True)
class _Prompt:
    layers: list[tuple[Tensor, Tensor]]
    """Keys and values, each [1, H, P, D]."""
    read_at: int
    """The step."""

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for pair in self.layers for tensor in pair)


class KeptPrompts:
    """Of one model that learns; `step` is to be told as it does."""

    def __init__(self, steps: int) -> None:
        """`steps`: how long a prompt is kept."""
        self.step = 0
        self._steps = steps
        self._kept: OrderedDict[bytes, _Prompt] = OrderedDict()
        """By its tokens, the one that was asked for longest ago first."""
        self._bytes = 0

    def before(self, model: PreTrainedModel, batch: PackedBatch) -> tuple[DynamicCache, list[int]]:
        """Keys of what stands before the supervised positions of `batch`, request by request, and how many [R].

        `model` is to attend within requests.
        """
        prompts = batch.prompts
        found = {tokens: kept for tokens in prompts if (kept := self._find(tokens)) is not None}
        missing = [tokens for tokens in dict.fromkeys(prompts) if tokens and tokens not in found]
        if missing:
            found |= self._read(model, missing)
        asked = [found[tokens].layers for tokens in prompts if tokens]
        cache = DynamicCache()
        for number, layer in enumerate(zip(*asked, strict=True)):
            keys, values = zip(*layer, strict=True)
            cache.update(torch.cat(keys, 2), torch.cat(values, 2), number)
        for tokens in missing:
            self._keep(tokens, found[tokens])
        return cache, [_length(tokens) for tokens in prompts]

    def _find(self, tokens: bytes) -> _Prompt | None:
        kept = self._kept.get(tokens)
        if kept is None:
            return None
        if self.step - kept.read_at >= self._steps:
            self._bytes -= self._kept.pop(tokens).bytes
            return None
        self._kept.move_to_end(tokens)
        return kept

    def _keep(self, tokens: bytes, prompt: _Prompt) -> None:
        self._kept[tokens] = prompt
        self._bytes += prompt.bytes
        while self._bytes > MOST_BYTES:
            self._bytes -= self._kept.popitem(last=False)[1].bytes

    @torch.no_grad()
    def _read(self, model: PreTrainedModel, prompts: list[bytes]) -> dict[bytes, _Prompt]:
        parts = [torch.frombuffer(bytearray(tokens), dtype=torch.int64) for tokens in prompts]
        lengths = [len(part) for part in parts]
        cache = DynamicCache()
        model.base_model(
            input_ids=moved(torch.cat(parts)[None], model.device),
            attention_mask=torch.tensor(lengths)[None, None, None],
            position_ids=moved(torch.cat([torch.arange(length) for length in lengths])[None], model.device),
            past_key_values=cache,
            use_cache=True,
        )
        torch.clear_autocast_cache()  # else the copies of weights made here, without gradient, would be used again
        layers: list[Any] = cache.layers
        # Clones: a part of a batch's keys would keep all of them.
        split = [
            [[part.clone() for part in tensor.split(lengths, dim=2)] for tensor in (layer.keys, layer.values)]
            for layer in layers
        ]
        return {
            tokens: _Prompt([(keys[at], values[at]) for keys, values in split], self.step)
            for at, tokens in enumerate(prompts)
        }


def _length(tokens: bytes) -> int:
    return len(tokens) // torch.int64.itemsize
