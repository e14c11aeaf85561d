"""Some of a model's layers as one forward pass over requests that go on from what was read of them before."""

import copy
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from hotdraft.pipeline.models.hidden_state_draft import HiddenStateDraft
from hotdraft.pipeline.models.layer_stack import ReadEnough, layer_stack, states_behind, with_cache
from hotdraft.pipeline.models.names import ModelError
from hotdraft.pipeline.system.transfer import moved
from hotdraft.training.scoring.packed_attention import attend_within_requests

TRIED_TOKENS = 8


class LayerSpan:
    """Layers from `first` on, numbered from 0, up to `end`; with None up to the last, and the norm behind it."""

    def __init__(self, model: PreTrainedModel, first: int = 0, end: int | None = None) -> None:
        attend_within_requests(model)
        base: Any = model.base_model
        self.end = end
        self._last = model.config.get_text_config().num_hidden_layers - 1
        self._device = model.device
        self._layers: PreTrainedModel = _without(base, first) if first else base

    def __call__(self, given: Tensor, before: list[int], lengths: list[int], cache: DynamicCache) -> Tensor:
        """States [T, H] of what is `given`, request by request: token ids [T], or states [T, H] behind `first`.

        `before` and `lengths` are the tokens of each request that `cache` holds and that are given.
        """
        places = torch.cat(
            [torch.arange(start, start + length) for start, length in zip(before, lengths, strict=True)]
        )
        named = "inputs_embeds" if given.is_floating_point() else "input_ids"
        options: dict[str, Any] = {
            named: moved(given[None], self._device),
            "attention_mask": torch.tensor([before, lengths])[None, None],
            "position_ids": moved(places[None], self._device),
            **with_cache(self._layers, cache),
        }
        if self.end is not None:
            return states_behind(self._layers, self.end, **options)[0]
        return self._layers(**options)[0].squeeze(0)

    def keys(self, given: Tensor, before: list[int], lengths: list[int], cache: "SpanCache") -> Tensor | None:
        """Reads what is given into `cache`; states too if there is an `end`, as they come with the keys then."""
        if self.end is not None:
            return self(given, before, lengths, cache)
        cache.last = self._last
        with suppress(ReadEnough):
            self(given, before, lengths, cache)
        return None


class SpanCache(DynamicCache):
    """Ends a forward pass at the keys of layer `last`, behind which nothing more is asked for."""

    last: int | None = None

    def update(self, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
        """Of keys, values and the number of their layer."""
        found = super().update(*args, **options)
        if args[2] == self.last:
            raise ReadEnough
        return found

    def by_layer(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Keys and values, each [1, H, T, D], of the layers that there are any of."""
        layers: Sequence[Any] = self.layers
        return {at: (layer.keys, layer.values) for at, layer in enumerate(layers) if layer.is_initialized}


@torch.no_grad()
def is_divisible(model: PreTrainedModel, at: int) -> bool:
    """Whether layers up to `at` and those behind it give what the whole gives: some models do more on the way."""
    if not at or isinstance(model, HiddenStateDraft):
        return False
    base: Any = model.base_model
    try:
        name, _ = layer_stack(base)
    except ModelError:
        return False
    if "." in name:  # not the base model's own
        return False
    ids = torch.arange(TRIED_TOKENS, device=model.device)[None] % model.config.get_text_config().vocab_size
    states = states_behind(base, at, input_ids=ids, use_cache=False)
    whole = base(input_ids=ids, use_cache=False)[0]
    return torch.equal(whole, _without(base, at)(inputs_embeds=states, use_cache=False)[0])


def _without(base: PreTrainedModel, first: int) -> PreTrainedModel:
    """The base model without its layers before `first`; modules are shared."""
    name, layers = layer_stack(base)
    shell = copy.copy(base)
    shell._modules = {**base._modules, name: nn.ModuleList(list(layers)[first:])}
    return shell
