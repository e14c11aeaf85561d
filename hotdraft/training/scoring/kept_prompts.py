"""Prompts that a draft has read: the keys and values of its layers, kept from one step to the next.

An answer of fifty tokens after a prompt of two hundred costs a step five times what its own tokens do. A job of
few requests has the same prompts again and again while its weights hardly move: read without gradient, and kept
for some steps, they teach as much a step (docs/learning.md). Nor is read again what a prompt begins with that
another began with: instructions, schemas, earlier turns.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hotdraft.pipeline.system.byte_cache import ByteCache
from hotdraft.training.batches.packing import PackedBatch, token_count
from hotdraft.training.scoring.layer_span import LayerSpan
from hotdraft.training.scoring.lower_layers import LowerLayers
from hotdraft.training.scoring.read_prompts import ReadPrompt, joined, read_prompts, token_ids

MOST_BYTES = 2**28
"""Of keys and values that are kept."""
READ_TOGETHER = 1024
"""Tokens from which on no more prompts are read beside those that are asked for."""


class KeptPrompts:
    """Of one model that learns; `step` is to be told as it does."""

    def __init__(self, steps: int, lower: LowerLayers | None = None) -> None:
        """`steps`: how long a prompt is kept. Of the model only what is above the `lower` layers is run."""
        self.step = 0
        self._steps = steps
        self._lower = lower
        self._kept = ByteCache[bytes, ReadPrompt](MOST_BYTES)
        """By its tokens."""

    def states(self, model: PreTrainedModel, batch: PackedBatch) -> Tensor:
        """States [N, H] of `model` at the supervised positions of `batch`, with gradients through these alone."""
        layers = LayerSpan(model, 0 if self._lower is None else self._lower.count)
        prompts = batch.prompts
        found = {tokens: kept for tokens in prompts if (kept := self._find(tokens)) is not None}
        missing = [tokens for tokens in dict.fromkeys(prompts) if tokens and tokens not in found]
        if missing:
            missing += self._ahead(batch, missing)
        given, answered = self._given(batch, missing)
        if missing:
            known = {tokens: kept for tokens, kept in self._kept.items() if self._is_new(kept)}
            found |= read_prompts(layers, given, known, self.step)
        cache = joined([found[tokens] for tokens in prompts if tokens])
        for tokens in missing:
            self._kept.keep(tokens, found[tokens])
        before = [request.prompt_length for request in batch.requests]
        answers = [length - read for length, read in zip(batch.lengths, before, strict=True)]
        return layers(answered, before, answers, cache)

    def _given(self, batch: PackedBatch, missing: Sequence[bytes]) -> tuple[dict[bytes, Tensor], Tensor]:
        """What the layers are given: of each `missing` prompt, and of the supervised positions."""
        if self._lower is None:
            return {tokens: token_ids(tokens) for tokens in missing}, batch.input_ids[0, batch.supervised]
        prompts = self._lower.prompts([*batch.prompts, *missing])
        answers = self._lower.answers(batch.requests, prompts)
        states = {tokens: prompts[tokens].states for tokens in missing}
        return {tokens: found for tokens, found in states.items() if found is not None}, torch.cat(answers)

    def _ahead(self, batch: PackedBatch, missing: Sequence[bytes]) -> list[bytes]:
        """What may be read beside what is `missing`, as it soon will be too."""
        soon = dict.fromkeys(request.prompt for request in batch.ahead)
        lacking = [tokens for tokens in soon if tokens and tokens not in missing and self._find(tokens) is None]
        read = accumulate(map(token_count, lacking), initial=sum(map(token_count, missing)))
        return [tokens for tokens, before in zip(lacking, read, strict=False) if before < READ_TOGETHER]

    def _find(self, tokens: bytes) -> ReadPrompt | None:
        kept = self._kept.get(tokens)
        if kept is None or self._is_new(kept):
            return kept
        self._kept.drop(tokens)
        return None

    def _is_new(self, prompt: ReadPrompt) -> bool:
        return self.step - prompt.read_at < self._steps
