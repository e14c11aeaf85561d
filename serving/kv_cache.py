"""A static KV cache of slots with ragged lengths.

Rewinding is only a smaller length on the caller's side: what lies beyond it is masked and later
overwritten, so the cache itself keeps no length at all.
"""

from dataclasses import dataclass

import torch
from transformers.cache_utils import Cache, StaticLayer


@dataclass
class Window:
    """The part of the cache that the next forward writes and reads; shared by all layers."""

    rows: slice
    positions: torch.Tensor
    """int64 [B, Q]: where each new key goes in its row."""
    key_length: int
    """Keys handed to attention, from position 0."""


class RaggedLayer(StaticLayer):
    """Keys and values [slots, heads, max_length, head_dim], written at per-row positions."""

    def __init__(self, num_slots: int, max_length: int) -> None:
        super().__init__(max_cache_len=max_length)
        self.num_slots = num_slots
        self.window: Window | None = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        slots = (self.num_slots, *key_states.shape[1:])
        super().lazy_initialization(key_states.new_empty(slots), value_states.new_empty(slots))

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Scatter new states [B, heads, Q, D] into the window; return all keys and values of its rows."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        window = self.window
        assert window is not None, "SlotCache.open comes before every forward"
        assert self.keys is not None
        assert self.values is not None
        keys, values = self.keys[window.rows], self.values[window.rows]
        row = torch.arange(keys.shape[0], device=keys.device)[:, None]
        keys[row, :, window.positions] = key_states.transpose(1, 2)
        values[row, :, window.positions] = value_states.transpose(1, 2)
        return keys[:, :, : window.key_length], values[:, :, : window.key_length]


class SlotCache(Cache):
    """`num_slots` rows of up to `max_length` tokens for a model of `num_layers` layers."""

    def __init__(self, num_layers: int, num_slots: int, max_length: int) -> None:
        self.ragged = [RaggedLayer(num_slots, max_length) for _ in range(num_layers)]
        super().__init__(layers=list(self.ragged))

    def open(self, window: Window) -> None:
        """Say what the next forward writes and reads."""
        for layer in self.ragged:
            layer.window = window

    def move(self, source: int, destination: int, length: int) -> None:
        """Copy the first `length` positions of a slot over another's."""
        for layer in self.ragged:
            if layer.keys is not None and layer.values is not None:
                layer.keys[destination, :, :length] = layer.keys[source, :, :length]
                layer.values[destination, :, :length] = layer.values[source, :, :length]
