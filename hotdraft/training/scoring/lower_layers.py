"""The lower layers of a draft, where a burst does not adapt them: what they make of a request is found once for all
its steps, for its verdict, and for what comes after.

The upper layers alone learn what is new as well as all do at first (docs/learning.md), and the states between them
depend on nothing that learns.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from hotdraft.pipeline.models.adapter_folder import LoadedAdapter
from hotdraft.pipeline.models.layer_stack import layer_stack
from hotdraft.pipeline.system.byte_cache import ByteCache
from hotdraft.training.batches.packing import PackedRequest
from hotdraft.training.scoring.layer_span import LayerSpan
from hotdraft.training.scoring.read_prompts import ReadPrompt, joined, read_prompts, token_ids

MOST_BYTES = 2**27
LOOKED_AT = 256
"""Prompts of those asked for last, that one may go on from."""


@dataclass
class LowerStates:
    """What was found, by the name of the layers (`lower_name`)."""

    prompts: ByteCache[tuple[bytes, bytes], ReadPrompt] = field(default_factory=lambda: ByteCache(MOST_BYTES))
    """By tokens."""
    answers: ByteCache[tuple[bytes, PackedRequest], Tensor] = field(default_factory=lambda: ByteCache(MOST_BYTES))
    """States [N, H] of a request's other tokens."""


class LowerLayers:
    """The first `count` layers of `model`, as it is served with an adapter of this `name`."""

    def __init__(self, model: PreTrainedModel, count: int, name: bytes, kept: LowerStates) -> None:
        self.count = count
        self._span = LayerSpan(model, end=count)
        self._device = model.device
        self._name = name
        self._kept = kept

    def prompts(self, prompts: Sequence[bytes]) -> dict[bytes, ReadPrompt]:
        """By their tokens; of an empty one there is nothing."""
        names = [tokens for tokens in dict.fromkeys(prompts) if tokens]
        found = {tokens: kept for tokens in names if (kept := self._kept.prompts.get((self._name, tokens)))}
        missing = {tokens: token_ids(tokens) for tokens in names if tokens not in found}
        if missing:
            last = self._kept.prompts.newest(LOOKED_AT)
            known = {tokens: kept for (name, tokens), kept in last if name == self._name}
            with torch.autocast(self._device.type, enabled=False):  # as served, not as trained
                read = read_prompts(self._span, missing, known)
            for tokens, kept in read.items():
                self._kept.prompts.keep((self._name, tokens), kept)
            found |= read
        return found

    @torch.no_grad()
    def answers(self, requests: Sequence[PackedRequest], prompts: dict[bytes, ReadPrompt]) -> list[Tensor]:
        """States [N, H] of what stands behind each request's prompt, which is among `prompts`."""
        found = {one: kept for one in requests if (kept := self._kept.answers.get((self._name, one))) is not None}
        missing = [request for request in dict.fromkeys(requests) if request not in found]
        if missing:
            before = [request.prompt_length for request in missing]
            ids = [token_ids(request.tokens)[read:] for request, read in zip(missing, before, strict=True)]
            lengths = [len(part) for part in ids]
            cache = joined([prompts[request.prompt] for request in missing if request.prompt])
            with torch.autocast(self._device.type, enabled=False):
                states = self._span(torch.cat(ids), before, lengths, cache)
            for request, part in zip(missing, states.split(lengths), strict=True):
                found[request] = part.clone()  # a part of a batch's would keep all of them
                self._kept.answers.keep((self._name, request), found[request])
        return [found[request] for request in requests]


def leave_lower(model: PeftModel, lower: int) -> None:
    """Train nothing in the first `lower` layers."""
    _, layers = layer_stack(model.get_base_model())  # type: ignore[arg-type]  # of `build_lora`
    for parameter in chain.from_iterable(layer.parameters() for layer in list(layers)[:lower]):
        parameter.requires_grad_(False)


def lower_name(model: PreTrainedModel, lower: int, adapter: LoadedAdapter | None) -> bytes:
    """The same for adapters whose first `lower` layers compute the same; empty where they are the draft's own."""
    if adapter is None:
        return b""
    name, _ = layer_stack(model)
    below = tuple(f"{name}.{number}." for number in range(lower))
    pairs = {module: pair for module, pair in adapter.lora.items() if module.startswith(below)}
    if adapter.card.quantization == "none" and not any(factors[1].any() for factors in pairs.values()):
        return b""
    digest = hashlib.blake2b(f"{adapter.card.quantization} {adapter.scaling}".encode())
    for module, factors in sorted(pairs.items()):
        digest.update(module.encode())
        for factor in factors:
            digest.update(factor.cpu().numpy().tobytes())
    return digest.digest()
