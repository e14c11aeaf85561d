"""Llama-like decoders as one tight loop: stacked projections, rotation in place, one write of keys and values.

Transformers' layers launch some forty operations each; for the few tokens of a round that costs as
much as a third of the arithmetic on a CPU, and more than all of it on a fast GPU.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation

from hotdraft.serving.kernels.choose import layer_operations
from hotdraft.serving.kernels.layer_operations import LayerOperations, TorchOperations
from hotdraft.serving.models.attention import causal_mask, folded_attention, groups_of
from hotdraft.serving.models.hidden_states.target_states import TargetStates
from hotdraft.serving.models.linear import ServedLinear
from hotdraft.serving.models.llama_like import rotations
from hotdraft.serving.models.runner import Computation, Window

TORCH = TorchOperations()


@dataclass(frozen=True)
class _Step:
    """What the layers of one forward share."""

    slots: Tensor
    """int64 [B*Q*2H]: where new keys and values go, among all heads' positions."""
    mask: Tensor
    cos: Tensor
    sin: Tensor
    rows: Tensor | None
    """int64 [B]: rows whose keys are read, if not all that a layer is given."""


class FusedRunner:
    """Runs a Llama-like model over static slots. Its weights are taken over."""

    stalls = 0

    def __init__(
        self, model: PreTrainedModel, head: nn.Module, num_slots: int, max_length: int, *, why_not_native: str
    ) -> None:
        head_dim = model.model.layers[0].self_attn.head_dim
        operations = layer_operations(model.device, model.dtype, head_dim)
        self.unseen_launches = operations.unseen_launches
        self.head = head
        self.computation = Computation(
            "fused", operations.name, str(model.dtype).removeprefix("torch."), why_not_native
        )
        self._embed = model.model.embed_tokens
        self._norm = RMSNorm(model.model.norm, operations)
        self._groups = groups_of(model.config)
        self._layers = [
            _Layer(f"model.layers.{i}", layer, operations) for i, layer in enumerate(model.model.layers)
        ]
        self.linears = [linear for layer in self._layers for linear in layer.linears]
        self._cos, self._sin = rotations(model, model.dtype, max_length)
        heads = model.config.num_attention_heads // self._groups
        shape = (len(self._layers), num_slots, 2, heads, max_length, self._cos.shape[-1])
        self._kv = torch.zeros(shape, dtype=model.dtype, device=model.device)
        self._stores = self._kv.flatten(1, 4).unbind(0)
        # [slots, 1, 2H]: where the positions of each slot's key and value heads begin
        self._starts = torch.arange(0, num_slots * 2 * heads * max_length, max_length, device=model.device)
        self._starts = self._starts.view(num_slots, 1, 2 * heads)
        self._states: TargetStates | None = None

    def record_states(self, states: TargetStates) -> None:
        self._states = states

    def forward(self, window: Window, token_ids: Tensor, keep: int) -> Tensor:
        return self.head(self._norm(self._run(window, self._embed(token_ids))[:, -keep:]))

    def _run(self, window: Window, hidden: Tensor, first_inputs: Tensor | None = None) -> Tensor:
        """What the layers make of `hidden` [B, Q, E]. The first one's product is of `first_inputs` where they are
        given, and of its normalised input otherwise."""
        positions = window.positions
        rows, read = (window.rows, window.rows) if window.slots is None else (window.slots, slice(None))
        step = _Step(
            slots=(self._starts[rows] + window.written[..., None]).flatten(),
            mask=causal_mask(positions, window.key_length, self._groups, self._kv.dtype, own_keys=window.keys),
            cos=self._cos[positions],
            sin=self._sin[positions],
            rows=window.slots,
        )
        seen = self._kv[:, read, :, :, : window.key_length]
        keys, values = seen[:, :, 0].unbind(0), seen[:, :, 1].unbind(0)
        inputs = first_inputs
        layers = zip(self._layers, self._stores, keys, values, strict=True)
        for number, (layer, store, key, value) in enumerate(layers, 1):
            hidden = layer.forward(hidden, store, key, value, step, inputs)
            inputs = None
            if self._states is not None:
                self._states.record(window, number, hidden)
        return hidden

    def move(self, source: int, destination: int, length: int) -> None:
        self._kv[:, destination, :, :, :length] = self._kv[:, source, :, :, :length]

    def move_keys(self, sources: Tensor, destinations: Tensor) -> None:
        slots = torch.arange(len(sources), device=sources.device)
        self._kv[:, slots, :, :, destinations] = self._kv[:, slots, :, :, sources]

    def clear(self, slot: int) -> None:
        self._kv[:, slot].zero_()


class RMSNorm:
    """On a CPU the layer norm of [x, -x], whose mean is 0: that is one kernel, where RMS norm is ten."""

    def __init__(self, norm: Any, operations: LayerOperations = TORCH) -> None:
        self.epsilon: float = norm.variance_epsilon
        self._operations = operations
        self.mirrored = norm.weight.device.type == "cpu"
        self.weight = norm.weight.detach().repeat(2 if self.mirrored else 1)

    def __call__(self, hidden: Tensor) -> Tensor:
        if not self.mirrored:
            return self._operations.rms_norm(hidden, self.weight, self.epsilon)
        both = F.layer_norm(torch.cat([hidden, -hidden], -1), self.weight.shape, self.weight, None, self.epsilon)
        return both[..., : hidden.shape[-1]]


class _Layer:
    def __init__(self, name: str, layer: Any, operations: LayerOperations) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.head_dim: int = attention.head_dim
        self.scaling: float = attention.scaling
        self.head_norms = (
            (RMSNorm(attention.q_norm), RMSNorm(attention.k_norm)) if hasattr(attention, "q_norm") else None
        )
        self.input_norm = RMSNorm(layer.input_layernorm, operations)
        self.mlp_norm = RMSNorm(layer.post_attention_layernorm, operations)
        self.activation = None if isinstance(mlp.act_fn, nn.SiLU | SiLUActivation) else mlp.act_fn
        self._operations = operations
        self.qkv = _stacked(name, layer, "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        self.output = _stacked(name, layer, "self_attn.o_proj")
        self.gate_up = _stacked(name, layer, "mlp.gate_proj", "mlp.up_proj")
        self.down = _stacked(name, layer, "mlp.down_proj")
        self.linears = [self.qkv, self.output, self.gate_up, self.down]

    def forward(
        self,
        hidden: Tensor,
        store: Tensor,
        key: Tensor,
        value: Tensor,
        step: _Step,
        inputs: Tensor | None = None,
    ) -> Tensor:
        """hidden [B, Q, E]; store [slots * 2H * max_length, D], of which key and value [B, H, K, D] are views.

        With `step.rows` they are of all slots. Queries, keys and values are made of `inputs`, by default of the
        normalised `hidden`.
        """
        batch, length, _ = hidden.shape
        heads = self.qkv(self.input_norm(hidden) if inputs is None else inputs).view(
            batch, length, -1, self.head_dim
        )
        queries = heads.shape[2] - 2 * key.shape[1]
        if self.head_norms is not None:
            parts = heads[:, :, : -key.shape[1]].tensor_split([queries], 2)
            for norm, part in zip(self.head_norms, parts, strict=True):
                part.copy_(norm(part))
        rotated = self._operations.rotate_and_store(heads, queries, step.cos, step.sin, store, step.slots)
        query = rotated.transpose(1, 2)
        if step.rows is not None:
            key, value = key[step.rows], value[step.rows]
        attended, _ = folded_attention(None, query, key, value, step.mask, self.scaling)
        hidden = self.output.add_to(hidden, attended.view(batch, length, -1))
        return self.down.add_to(hidden, self._gated(self.gate_up(self.mlp_norm(hidden))))

    def _gated(self, gate_up: Tensor) -> Tensor:
        if self.activation is None:
            return self._operations.gate(gate_up)
        gate, up = gate_up.chunk(2, -1)
        return self.activation(gate) * up


def _stacked(name: str, layer: Any, *parts: str) -> ServedLinear:
    return ServedLinear.of({f"{name}.{part}": layer.get_submodule(part) for part in parts})
