"""Prompts that a draft has read: the keys and values of its layers, kept from one step to the next.

An answer of fifty tokens after a prompt of two hundred costs a step five times what its own tokens do. A job of
few requests has the same prompts again and again while its weights hardly move: read without gradient, and kept
for some steps, they teach as much a step (docs/learning.md). Nor is read again what a prompt begins with that
another began with: instructions, schemas, earlier turns (RadixAttention: Zheng et al., 2023).
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import itemgetter
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from hotdraft.pipeline.models.layer_stack import with_cache
from hotdraft.pipeline.system.transfer import moved
from hotdraft.training.batches.byte_cache import ByteCache
from hotdraft.training.batches.packing import PackedBatch

MOST_BYTES = 2**28
"""Of keys and values that are kept."""
READ_TOGETHER = 1024
"""Tokens from which on no more prompts are read beside those that are asked for."""
WORTH = 4
"""One in so many of a prompt's tokens, that it is read on from."""


@dataclass(frozen=True)
class _Prompt:
    layers: Sequence[tuple[Tensor, Tensor]]
    """Keys and values, each [1, H, P, D]; none of a prompt of no tokens."""
    read_at: int
    """The step, of its oldest part."""

    def start(self, length: int) -> Self:
        """Its first `length` tokens, of the same memory."""
        cut = [(keys[:, :, :length], values[:, :, :length]) for keys, values in self.layers]
        return replace(self, layers=cut)

    def __len__(self) -> int:
        return self.layers[0][0].shape[2] if self.layers else 0

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for pair in self.layers for tensor in pair)


class KeptPrompts:
    """Of one model that learns; `step` is to be told as it does."""

    def __init__(self, steps: int) -> None:
        """`steps`: how long a prompt is kept."""
        self.step = 0
        self._steps = steps
        self._kept = ByteCache[bytes, _Prompt](MOST_BYTES)
        """By its tokens."""

    def before(self, model: PreTrainedModel, batch: PackedBatch) -> tuple[DynamicCache, list[int]]:
        """Keys of what stands before the supervised positions of `batch`, request by request, and how many [R].

        `model` is to attend within requests.
        """
        prompts = batch.prompts
        found = {tokens: kept for tokens in prompts if (kept := self._find(tokens)) is not None}
        missing = [tokens for tokens in dict.fromkeys(prompts) if tokens and tokens not in found]
        if missing:
            missing += self._ahead(batch, missing)
            found |= self._read(model, missing)
        cache = _joined([found[tokens] for tokens in prompts if tokens])
        for tokens in missing:
            self._kept.keep(tokens, found[tokens])
        return cache, [_length(tokens) for tokens in prompts]

    def _ahead(self, batch: PackedBatch, missing: Sequence[bytes]) -> list[bytes]:
        """What may be read beside what is `missing`, as it soon will be too."""
        soon = (tokens for tokens in dict.fromkeys(batch.prompts_ahead) if tokens and tokens not in missing)
        lacking = [tokens for tokens in soon if self._find(tokens) is None]
        read = accumulate(map(_length, lacking), initial=sum(map(_length, missing)))
        return [tokens for tokens, before in zip(lacking, read, strict=False) if before < READ_TOGETHER]

    def _find(self, tokens: bytes) -> _Prompt | None:
        kept = self._kept.get(tokens)
        if kept is None or self._is_new(kept):
            return kept
        self._kept.drop(tokens)
        return None

    @torch.no_grad()
    def _read(self, model: PreTrainedModel, prompts: Sequence[bytes]) -> dict[bytes, _Prompt]:
        """Each goes on from what it begins with of one that is kept, or that was read before it."""
        read: dict[bytes, _Prompt] = {}
        while left := [tokens for tokens in prompts if tokens not in read]:
            known = {tokens: kept for tokens, kept in self._kept.items() if self._is_new(kept)} | read
            turn: dict[bytes, _Prompt] = {}
            for tokens in left:
                begun = [(shared, one) for other, one in known.items() if (shared := _shared(tokens, other))]
                shared, longest = max(begun, key=itemgetter(0), default=(0, _Prompt([], self.step)))
                if all(_shared(tokens, beside) <= shared for beside in turn):
                    turn[tokens] = longest.start(shared)
            read |= _read_on(model, turn, self.step)
        return read

    def _is_new(self, prompt: _Prompt) -> bool:
        return self.step - prompt.read_at < self._steps


def _read_on(model: PreTrainedModel, turn: Mapping[bytes, _Prompt], step: int) -> dict[bytes, _Prompt]:
    """Whole prompts by their tokens, of which what they go on from was read before."""
    before = [len(begun) for begun in turn.values()]
    parts = [
        torch.frombuffer(bytearray(tokens), dtype=torch.int64)[start:]
        for tokens, start in zip(turn, before, strict=True)
    ]
    lengths = [len(part) for part in parts]
    places = [torch.arange(length) + start for length, start in zip(lengths, before, strict=True)]
    cache = _joined([begun for begun in turn.values() if begun.layers])
    cache.last = model.config.get_text_config().num_hidden_layers - 1
    with suppress(_ReadEnoughError):
        model.base_model(
            input_ids=moved(torch.cat(parts)[None], model.device),
            attention_mask=torch.tensor([before, lengths])[None, None],
            position_ids=moved(torch.cat(places)[None], model.device),
            **with_cache(model.base_model, cache),
        )
    torch.clear_autocast_cache()  # else the copies of weights made here, without gradient, would be used again
    layers: list[Any] = cache.layers
    ends = [
        [tensor[:, :, sum(before) :].split(lengths, dim=2) for tensor in (layer.keys, layer.values)]
        for layer in layers
    ]
    read = {}
    for at, (tokens, begun) in enumerate(turn.items()):
        new = [(keys[at], values[at]) for keys, values in ends]
        # Copies, even of one alone: a part of a batch's keys would keep all of them.
        whole = _one_after_another([begun.layers, new] if begun.layers else [new])
        read[tokens] = _Prompt(whole, min(step, begun.read_at))
    return read


class _ReadEnoughError(Exception):
    """Raised within a forward pass of which no more is needed."""


class _Keys(DynamicCache):
    """Ends a forward pass at the keys of layer `last`, behind which nothing more is asked for."""

    last: int | None = None

    def update(self, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
        """Of keys, values and the number of their layer."""
        found = super().update(*args, **options)
        if args[2] == self.last:
            raise _ReadEnoughError
        return found


def _joined(prompts: Sequence[_Prompt]) -> _Keys:
    cache = _Keys()
    for number, (keys, values) in enumerate(_one_after_another([prompt.layers for prompt in prompts])):
        cache.update(keys, values, number)
    return cache


def _one_after_another(parts: Sequence[Sequence[tuple[Tensor, Tensor]]]) -> list[tuple[Tensor, Tensor]]:
    """Of each layer, the keys and values of all `parts`."""
    layers = (zip(*layer, strict=True) for layer in zip(*parts, strict=True))
    return [(torch.cat(keys, 2), torch.cat(values, 2)) for keys, values in layers]


def _shared(tokens: bytes, other: bytes) -> int:
    """Tokens that both begin with, but for the last of `tokens`: a forward pass must have one to read.

    0 where they are few: a template's first tokens are not worth being as old as another prompt.
    """
    length = _length(tokens)
    count = min(length - 1, _length(other))
    differ = np.frombuffer(tokens, np.int64, count) != np.frombuffer(other, np.int64, count)
    shared = int(differ.argmax()) if differ.any() else count
    return shared if shared * WORTH >= length else 0


def _length(tokens: bytes) -> int:
    return len(tokens) // torch.int64.itemsize
