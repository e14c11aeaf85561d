"""Prompts that layers of a draft have read: what is kept of them, and how others are read that begin alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Self

import numpy as np
import torch
from torch import Tensor

from hotdraft.training.batches.packing import token_count
from hotdraft.training.scoring.layer_span import LayerSpan, SpanCache

WORTH = 4
"""One in so many of a prompt's tokens, that it is read on from."""

Layers = Mapping[int, tuple[Tensor, Tensor]]
"""Keys and values, each [1, H, P, D], by the numbers of layers; none of a prompt of no tokens."""


@dataclass(frozen=True)
class ReadPrompt:
    layers: Layers
    states: Tensor | None
    """[P, H] behind these layers, where they are not a model's last."""
    read_at: int = 0
    """The step, of its oldest part."""

    def start(self, length: int) -> Self:
        """Its first `length` tokens, of the same memory."""
        cut = {at: (keys[:, :, :length], values[:, :, :length]) for at, (keys, values) in self.layers.items()}
        return replace(self, layers=cut, states=None if self.states is None else self.states[:length])

    def __len__(self) -> int:
        return next((keys.shape[2] for keys, _ in self.layers.values()), 0)

    @property
    def nbytes(self) -> int:
        of_states = 0 if self.states is None else self.states.nbytes
        return of_states + sum(tensor.nbytes for pair in self.layers.values() for tensor in pair)


@torch.no_grad()
def read_prompts(
    span: LayerSpan, given: Mapping[bytes, Tensor], known: Mapping[bytes, ReadPrompt], step: int = 0
) -> dict[bytes, ReadPrompt]:
    """Prompts by their tokens, of what the layers are `given` of each (see `LayerSpan`).

    Each goes on from what it begins with of one that is `known`, or that was read before it (RadixAttention: Zheng
    et al., 2023).
    """
    read: dict[bytes, ReadPrompt] = {}
    while left := [tokens for tokens in given if tokens not in read]:
        turn: dict[bytes, ReadPrompt] = {}
        for tokens in left:
            begun = [
                (shared, one) for other, one in ({**known, **read}).items() if (shared := _shared(tokens, other))
            ]
            shared, longest = max(begun, key=itemgetter(0), default=(0, ReadPrompt({}, None, step)))
            if all(_shared(tokens, beside) <= shared for beside in turn):
                turn[tokens] = longest.start(shared)
        parts = [given[tokens][len(begun) :] for tokens, begun in turn.items()]
        read |= dict(zip(turn, _read_on(span, list(turn.values()), parts, step), strict=True))
    return read


def joined(prompts: Sequence[ReadPrompt]) -> SpanCache:
    """Their keys and values, one after another."""
    cache = SpanCache()
    for number, (keys, values) in _one_after_another([prompt.layers for prompt in prompts]).items():
        cache.update(keys, values, number)
    return cache


def token_ids(tokens: bytes) -> Tensor:
    """int64 [T]."""
    return torch.frombuffer(bytearray(tokens), dtype=torch.int64)


def _read_on(span: LayerSpan, begun: Sequence[ReadPrompt], parts: Sequence[Tensor], step: int) -> list[ReadPrompt]:
    """Whole prompts, of which what they go on from was read before and `parts` are the rest."""
    before, lengths = [len(prompt) for prompt in begun], [len(part) for part in parts]
    cache = joined([prompt for prompt in begun if prompt.layers])
    states = span.keys(torch.cat(list(parts)), before, lengths, cache)
    torch.clear_autocast_cache()  # else the copies of weights made here, without gradient, would be used again
    ends = {
        number: [tensor[:, :, sum(before) :].split(lengths, dim=2) for tensor in pair]
        for number, pair in cache.by_layer().items()
    }
    of_parts = len(parts) * [None] if states is None else states.split(lengths)
    read = []
    for at, (prompt, found) in enumerate(zip(begun, of_parts, strict=True)):
        new = {number: (keys[at], values[at]) for number, (keys, values) in ends.items()}
        # Copies, even of one alone: a part of a batch's keys would keep all of them.
        whole = _one_after_another([prompt.layers, new] if prompt.layers else [new])
        both = [part for part in (prompt.states, found) if part is not None]
        read.append(ReadPrompt(whole, torch.cat(both) if both else None, min(step, prompt.read_at)))
    return read


def _one_after_another(parts: Sequence[Layers]) -> dict[int, tuple[Tensor, Tensor]]:
    """Of each layer, the keys and values of all `parts`."""
    whole = {}
    for number in parts[0] if parts else ():
        keys, values = zip(*(layers[number] for layers in parts), strict=True)
        whole[number] = torch.cat(keys, 2), torch.cat(values, 2)
    return whole


def _shared(tokens: bytes, other: bytes) -> int:
    """Tokens that both begin with, but for the last of `tokens`: a forward pass must have one to read.

    0 where they are few: a template's first tokens are not worth being as old as another prompt.
    """
    length = token_count(tokens)
    count = min(length - 1, token_count(other))
    differ = np.frombuffer(tokens, np.int64, count) != np.frombuffer(other, np.int64, count)
    shared = int(differ.argmax()) if differ.any() else count
    return shared if shared * WORTH >= length else 0
