"""Linear layers in the native library's layouts, exchanged in place."""

from collections.abc import Mapping, Sequence
from ctypes import c_void_p

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hotdraft.pipeline.system.freed_memory import page_out
from hotdraft.serving.native.bindings import Format, LinearStruct, native_library
from hotdraft.serving.native.memory import WeightMemory

LANES = 16
"""Outputs of a panel."""


class NativeLinear(nn.Module):
    """y = x Wᵀ + b for the native forward, with the weights [out, in] of one or more layers stacked in W, by name.

    With `interleaved` two layers take turns panel by panel, so that their outputs meet where they are computed.
    With `keeps` the weights themselves are kept beside what rounding made of them, for adapters to be merged with.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        bias: Tensor | None,
        format: Format,
        memory: WeightMemory,
        *,
        interleaved: bool = False,
        keeps: bool = False,
    ) -> None:
        super().__init__()
        self.names = tuple(weights)
        self._library = native_library()
        self._format = format
        self._interleaved = interleaved
        self._rows = [len(weight) for weight in weights.values()]
        self._dtype = next(iter(weights.values())).dtype
        self._kept = dict(weights) if keeps else None
        stacked = self._stacked(weights)
        self._outputs, self._inputs = stacked.shape
        self.struct = LinearStruct(format, self._inputs, self._outputs, 0, None, None)
        self.weight = memory.take(self._packed_bytes(stacked))
        self._pack(stacked, self.weight)
        self.struct.panels = self.weight.data_ptr()
        self.bias = None
        if bias is not None:
            parts = self._stack(list(bias.detach().float()[:, None].split(self._rows)))
            self.bias = F.pad(parts[:, 0], (0, -len(parts) % (2 * LANES))).contiguous()
            self.struct.bias = self.bias.data_ptr()

    @classmethod
    def of(
        cls,
        layers: Mapping[str, nn.Linear],
        format: Format,
        memory: WeightMemory,
        *,
        interleaved: bool = False,
        keeps: bool = False,
    ) -> "NativeLinear":
        """Layers by name, in the order of the outputs; all of them have a bias, or none has."""
        biases = [layer.bias.detach() for layer in layers.values() if layer.bias is not None]
        weights = {f"{name}.weight": layer.weight.detach() for name, layer in layers.items()}
        bias = torch.cat(biases) if biases else None
        return cls(weights, bias, format, memory, interleaved=interleaved, keeps=keeps)

    def prepare(self, weights: Mapping[str, Tensor]) -> Tensor:
        """What `install` takes, from weights by parameter name; may run in any thread.

        Of some of a layer's rows, whole panels, it is that part of it.
        """
        stacked = self._stacked(weights)
        packed = torch.empty(self._packed_bytes(stacked), dtype=self.weight.dtype)
        self._pack(stacked, packed)
        return packed

    def install(self, prepared: Tensor) -> None:
        """Take on prepared weights in place."""
        self.weight.copy_(prepared)

    def weights(self) -> dict[str, Tensor]:
        """The weights by parameter name: as they serve, or as they were before rounding where that is kept."""
        if self._kept is not None:
            return dict(self._kept)
        stacked = torch.empty(self._outputs, self._inputs)
        self._library.hd_unpack(
            self._format, self.weight.data_ptr(), self._inputs, self._outputs, c_void_p(stacked.data_ptr())
        )
        parts = self._taken_apart(stacked.to(self._dtype))
        return dict(zip(self.names, parts, strict=True))

    def _packed_bytes(self, stacked: Tensor) -> int:
        outputs, inputs = stacked.shape
        return self._library.hd_packed_bytes(self._format, inputs, outputs)

    def _pack(self, stacked: Tensor, to: Tensor) -> None:
        self._library.hd_pack(self._format, stacked.data_ptr(), self._inputs, len(stacked), c_void_p(to.data_ptr()))
        page_out((self._kept or {}).values())  # until the next adapter is merged

    def _stacked(self, weights: Mapping[str, Tensor]) -> Tensor:
        """float32 [outputs, inputs], in the order in which they are packed."""
        return self._stack([weights[name] for name in self.names]).float().contiguous()

    def _stack(self, parts: Sequence[Tensor]) -> Tensor:
        if not self._interleaved:
            return torch.cat(list(parts))
        padded = [F.pad(part, (0, 0, 0, -len(part) % LANES)).unflatten(0, (-1, LANES)) for part in parts]
        return torch.stack(padded, 1).flatten(0, 2)

    def _taken_apart(self, stacked: Tensor) -> Sequence[Tensor]:
        if not self._interleaved:
            return stacked.split(self._rows)
        by_turns = stacked.unflatten(0, (-1, len(self._rows), LANES))
        return [by_turns[:, turn].flatten(0, 1)[:rows].clone() for turn, rows in enumerate(self._rows)]
