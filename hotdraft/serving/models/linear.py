"""Linear layers as they are served: several products of one input in one, weights exchanged in place.

On a CPU in bfloat16 the weight is kept in oneDNN's own layout. Without that every call reorders it
first, which for the few tokens of a round costs more than the product.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ServedLinear(nn.Module):
    """y = x Wᵀ + b, with the weights [out, in] of one or more layers stacked in W, by parameter name."""

    def __init__(self, weights: Mapping[str, Tensor], bias: Tensor | None) -> None:
        super().__init__()
        first = next(iter(weights.values()))
        self.names = tuple(weights)
        self.packed = first.device.type == "cpu" and first.dtype == torch.bfloat16 and cpu_has_bfloat16()
        self.weight = self.prepare(weights)
        self.bias = bias
        self._rows = [len(weight) for weight in weights.values()]

    @classmethod
    def of(cls, layers: Mapping[str, nn.Linear]) -> "ServedLinear":
        """Layers by name, in the order of the outputs; all of them have a bias, or none has."""
        biases = [layer.bias.detach() for layer in layers.values() if layer.bias is not None]
        weights = {f"{name}.weight": layer.weight.detach() for name, layer in layers.items()}
        return cls(weights, torch.cat(biases) if biases else None)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(inputs, self.weight, self.bias, "none", [], "")
        return F.linear(inputs, self.weight, self.bias)

    def add_to(self, residual: Tensor, inputs: Tensor) -> Tensor:
        """residual + forward(inputs), which may be put into `residual`."""
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise.binary(inputs, residual, self.weight, self.bias, "add")
        if self.bias is not None:
            return residual + self(inputs)
        residual.flatten(0, -2).addmm_(inputs.flatten(0, -2), self.weight.t())
        return residual

    def prepare(self, weights: Mapping[str, Tensor]) -> Tensor:
        """What `install` takes, from weights by parameter name; may run in any thread."""
        parts = [weights[name] for name in self.names]
        weight = torch.cat(parts) if len(parts) > 1 else parts[0]
        return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous()) if self.packed else weight

    def install(self, prepared: Tensor) -> None:
        """Take on prepared weights in place: addresses stay, as CUDA graphs need."""
        self.weight.copy_(prepared)

    def weights(self) -> dict[str, Tensor]:
        """Copies of the weights, by parameter name."""
        dense = self.weight.to_dense() if self.packed else self.weight.clone()
        return dict(zip(self.names, dense.split(self._rows), strict=True))


def cpu_has_bfloat16() -> bool:
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()
