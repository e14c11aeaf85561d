"""The draft inside vLLM: weights for another version beside it, and both exchanged in place.

The other version's weights are brought into the form and the share that this rank serves by vLLM itself: by the
model's own `load_weights`, which knows names and tensor-parallel shards, into stand-ins of its linear layers, and
by each layer's own processing after loading. On a CPU that makes a oneDNN handler, whose address a compiled model
reads from a tensor; elsewhere a weight is copied to where the old one lies, as CUDA graphs ask for.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

PLAIN_METHOD = "UnquantizedLinearMethod"


class DraftError(RuntimeError):
    """A draft that cannot be exchanged, or that does not compute what it should; the message says why."""


class LiveDraft:
    """One rank's part of vLLM's draft `model`."""

    def __init__(self, model: nn.Module) -> None:
        """Raises `DraftError` for one whose linear layers are quantised: their weights cannot be exchanged."""
        self._model = model
        odd = {type(layer.quant_method).__name__ for layer in linears(model)} - {PLAIN_METHOD}
        if odd:
            raise DraftError(f"the draft's weights are quantised ({', '.join(sorted(odd))}): serve it unquantised")

    def prepare(self, weights: Mapping[str, Tensor]) -> nn.Module:
        """Stand-ins for all linear layers with this rank's share of `weights`, by the names of the draft's file.

        Touches nothing that serves, and may run beside it.
        """
        staged = _stand_in(self._model)
        waiting = {id(layer.weight): layer.weight for layer in linears(staged)}
        for weight in waiting.values():
            weight.data.fill_(float("nan"))
        staged.load_weights(weights.items())
        if any(not torch.isfinite(weight).all() for weight in waiting.values()):
            raise DraftError("the weights do not fill the draft's linear layers")
        for layer in linears(staged):
            layer.quant_method.process_weights_after_loading(layer)
        return staged

    def exchange(self, staged: nn.Module) -> None:
        """Serve what `staged` holds, which then holds what was served: to call this again takes it back.

        Where it raises, nothing has changed.
        """
        done: list[tuple[Any, Any]] = []
        try:
            for pair in zip(linears(self._model), linears(staged), strict=True):
                _exchange_layer(*pair)
                done.append(pair)
        except BaseException:
            for pair in done:
                _exchange_layer(*pair)
            raise

    @torch.inference_mode()
    def logits(self, input_ids: Tensor, last: int) -> Tensor | None:
        """Of the last positions of `input_ids` [T], float32 [last, V], through the layers that serve; all ranks
        have to ask at once, and None is what vLLM gives to those that gather nothing.

        Attention is computed here, from what the layers make of the ids: no block of vLLM's cache is touched.
        """
        device = next(self._model.parameters()).device
        positions = torch.arange(len(input_ids), device=device)
        with _eager(self._model), _own_attention(self._model):
            hidden = self._model(input_ids=input_ids.to(device), positions=positions)
            logits = self._model.compute_logits(hidden[-last:])  # type: ignore[operator]
        return None if logits is None else logits.float()


def linears(model: nn.Module) -> list[Any]:
    """Layers that vLLM makes of linear ones, which a LoRA may adapt."""
    return [module for module in model.modules() if hasattr(module, "skip_bias_add")]


def _stand_in(module: Any) -> Any:
    """`module` with linear layers of its own, and all else shared."""
    twin = copy.copy(module)
    twin._parameters = dict(module._parameters)
    twin._modules = {name: child if child is None else _stand_in(child) for name, child in module._modules.items()}
    if hasattr(module, "skip_bias_add"):
        twin.quant_method.create_weights(
            layer=twin,
            input_size_per_partition=twin.input_size_per_partition,
            output_partition_sizes=twin.output_partition_sizes,
            input_size=twin.input_size,
            output_size=twin.output_size,
            params_dtype=twin.params_dtype,
            weight_loader=getattr(twin, "weight_loader_v2", None) or twin.weight_loader,
        )
    return twin


def _exchange_layer(live: Any, other: Any) -> None:
    if live.weight.numel():
        _exchange(live.weight.data, other.weight.data)
    else:
        _exchange_held(live.cpu_linear, other.cpu_linear)


def _exchange(live: Tensor, other: Tensor) -> None:
    held = live.to(other.device, copy=True)
    live.copy_(other)
    other.copy_(held)


def _exchange_held(live: Any, other: Any) -> None:
    """What two `cpu_linear` of vLLM hold: a packed weight, or a oneDNN handler."""
    for cell, other_cell in zip(live.__closure__ or (), other.__closure__ or (), strict=True):
        held, other_held = cell.cell_contents, other_cell.cell_contents
        if isinstance(held, Tensor):
            _exchange(held, other_held)
        elif hasattr(held, "handler_tensor"):
            _exchange(held.handler_tensor, other_held.handler_tensor)


@contextmanager
def _eager(model: nn.Module) -> Iterator[None]:
    compiled: list[Any] = [module for module in model.modules() if getattr(module, "do_not_compile", True) is False]
    for module in compiled:
        module.do_not_compile = True
    try:
        yield
    finally:
        for module in compiled:
            module.do_not_compile = False


@contextmanager
def _own_attention(model: nn.Module) -> Iterator[None]:
    layers: list[Any] = [
        module for module in model.modules() if hasattr(module, "kv_cache") and hasattr(module, "impl")
    ]
    for layer in layers:
        layer.forward = _attention(layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _attention(layer: Any) -> Any:
    heads, kv_heads, size, scale = layer.num_heads, layer.num_kv_heads, layer.head_size, layer.impl.scale

    def forward(query: Tensor, key: Tensor, value: Tensor, *shape: Any, **more: Any) -> Tensor:
        parts = (query, heads), (key, kv_heads), (value, kv_heads)
        q, k, v = (part.reshape(len(query), number, size).transpose(0, 1) for part, number in parts)
        mixed = nn.functional.scaled_dot_product_attention(
            q[None], k[None], v[None], is_causal=True, scale=scale, enable_gqa=heads != kv_heads
        )
        return mixed[0].transpose(0, 1).reshape(len(query), heads * size)

    return forward
