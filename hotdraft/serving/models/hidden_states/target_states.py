"""What a target's layers make of the tokens in its slots, where a draft reads it beside its keys and values."""

from collections.abc import Sequence
from ctypes import addressof, c_int32

import numpy as np
import torch
from torch import Tensor

from hotdraft.pipeline.models.hidden_state_draft import HiddenStateConfig, at_unit_size, made_up_states
from hotdraft.serving.models.runner import Window
from hotdraft.serving.models.slots import Slots
from hotdraft.serving.native.bindings import StatesStruct


class TargetStates:
    """States [slots, L, S] in bfloat16, of each slot's token at a position; the last slot's are those of probes."""

    def __init__(self, config: HiddenStateConfig, slots: Slots) -> None:
        self.layers: Sequence[int] = tuple(config.target_layers or ())
        """Behind so many of the target's layers."""
        self.size = config.hidden_size
        shape = (slots.num_slots + 1, slots.max_length, config.state_size)
        self.values = torch.zeros(shape, dtype=torch.bfloat16, device=slots.device)
        self.values[-1] = made_up_states(slots.max_length, config.state_size)
        self._slots = slots
        self._native_layers = (c_int32 * len(self.layers))(*self.layers)

    def struct(self) -> StatesStruct:
        """For the native library, as long as this lives."""
        return StatesStruct(
            count=len(self.layers),
            size=self.size,
            max_length=self.values.shape[1],
            slots=self.values.shape[0],
            layers=addressof(self._native_layers),
            values=self.values.data_ptr(),
            committed=self._slots.device_lengths.data_ptr(),
        )

    def record(self, window: Window, behind: int, states: Tensor) -> None:
        """Keep the target's states [B, Q, H] behind so many layers, if they are read."""
        if behind not in self.layers:
            return
        first = self.layers.index(behind) * self.size
        part = self.values[:, :, first : first + self.size]
        part[slots_of(window)[:, None], window.written] = at_unit_size(states)

    def before(self, window: Window) -> Tensor:
        """[B, Q, S]: what the target made of the token before each that a window reads; zeros before the first."""
        slots = slots_of(window)[:, None]
        before = self.values[slots, (window.positions - 1).clamp_min(0)]
        return before.masked_fill((window.positions == 0)[..., None], 0)

    def committed(self, window: Window) -> Tensor:
        """bool [B, Q]: which tokens of a window are no guesses, so that the target has read those before them."""
        if window.rows.start == self._slots.num_slots:
            return torch.ones_like(window.positions, dtype=torch.bool)
        return window.positions < self._slots.device_lengths[slots_of(window)]

    def copied(self, slot: int, length: int) -> np.ndarray:
        """uint16 [length, S], the bits of bfloat16: of a slot's first tokens, on the host."""
        return self.values[slot, :length].clone().view(torch.uint16).numpy()

    def move(self, source: int, destination: int, length: int) -> None:
        self.values[destination, :length] = self.values[source, :length]

    def move_keys(self, sources: Tensor, destinations: Tensor) -> None:
        slots = torch.arange(len(sources), device=sources.device)
        self.values[slots, destinations] = self.values[slots, sources]

    def clear(self, slot: int) -> None:
        self.values[slot].zero_()


def slots_of(window: Window) -> Tensor:
    """int64 [B]: those of a window's rows."""
    if window.slots is not None:
        return window.slots
    return torch.arange(window.rows.start, window.rows.stop, device=window.positions.device)
