"""Attention within the requests of a packed row, registered with transformers under `PACKED`.

A mask over the whole row would have the kernels compute all pairs of tokens, of which few see each other.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from hotdraft.pipeline.models.names import ModelError

PACKED = "hotdraft_packed"
FEW_SCORES = 2**20
"""Of a request, up to which products that oneDNN has kernels for are faster on a CPU in bfloat16 than torch's fused
one: 1.7 times, 2 to 4 with the backward pass. More would not stay in its cache. Autograd keeps them, so only after
prompts that are kept, where a row has few tokens."""


def attend_within_requests(model: PreTrainedModel) -> None:
    """Have `model` take the lengths of a row's requests, int64 [1, 1, 1, R] on the CPU, as its attention mask.

    Or [1, 1, 2, R]: the tokens of each request that were read before, whose keys come first, and those in the row.
    Of four dimensions, as transformers hands on a mask of these untouched.
    """
    if model.config._attn_implementation != PACKED:
        AttentionInterface.register(PACKED, packed_attention)
        model.set_attn_implementation(PACKED)


def packed_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Causal attention of each request by itself, by what transformers has for torch's fused kernels.

    In the layer's sliding window, if it has one.

    Shapes: query [1, G*H, T, D]; key and value [1, H, P + T, D], the P read before first; attention_mask as above,
    without which nothing is packed. Returns [1, T, G*H, D].
    """
    if options.get("s_aux") is not None:  # transformers itself refuses to cap scores here, but drops sinks
        raise ModelError("attention with sinks is not supported")
    window = options.pop("sliding_window", None)
    if attention_mask is None:
        return sdpa_attention_forward(module, query, key, value, _within(window, query, key), **options)
    options["is_causal"] = True
    *before, lengths = attention_mask[0, 0].tolist()
    keys, values = (_by_request(tensor, lengths, *before) for tensor in (key, value))
    requests = zip(query.split(lengths, dim=2), keys, values, strict=True)
    attended = [
        _attend_to_few(q, k, v, window, options.get("scaling"))
        if before and _are_few(q, k)
        else sdpa_attention_forward(module, q, k, v, _within(window, q, k), **options)[0]
        for q, k, v in requests
    ]
    return torch.cat(attended, dim=1), None


def _are_few(query: Tensor, key: Tensor) -> bool:
    on_cpu = query.device.type == "cpu" and query.dtype == torch.bfloat16
    return on_cpu and query.shape[1] * query.shape[2] * key.shape[2] <= FEW_SCORES


def _attend_to_few(query: Tensor, key: Tensor, value: Tensor, window: int | None, scaling: float | None) -> Tensor:
    """[1, Q, G*H, D] of query [1, G*H, Q, D], key and value [1, H, K, D]; sums of scores are in float32."""
    (_, heads, queries, size), (_, groups, keys, _) = query.shape, key.shape
    scores = (query.reshape(groups, -1, size) @ key[0].mT).view(heads, queries, keys).float()
    scores = scores * (size**-0.5 if scaling is None else scaling)
    probs = scores.masked_fill(~_seen(window, query, key), -torch.inf).softmax(-1)
    attended = probs.to(value.dtype).view(groups, -1, keys) @ value[0]
    return attended.view(1, heads, queries, size).transpose(1, 2)


def _by_request(tensor: Tensor, lengths: list[int], before: list[int] | None = None) -> Sequence[Tensor]:
    if before is None:
        return tensor.split(lengths, dim=2)
    kept, row = tensor.split([sum(before), sum(lengths)], dim=2)
    parts = zip(kept.split(before, dim=2), row.split(lengths, dim=2), strict=True)
    return [torch.cat(pair, dim=2) for pair in parts]


def _within(window: int | None, query: Tensor, key: Tensor) -> Tensor | None:
    """`_seen` as a mask [1, 1, Q, K]; None where causality says it."""
    queries, keys = query.shape[2], key.shape[2]
    if queries == keys and (window is None or keys <= window):
        return None
    return _seen(window, query, key)[None, None]


def _seen(window: int | None, query: Tensor, key: Tensor) -> Tensor:
    """bool [Q, K]: the last `window` keys, or all, up to each query's own."""
    queries, keys = query.shape[2], key.shape[2]
    positions = torch.arange(keys, device=query.device)
    distance = positions[keys - queries :, None] - positions
    return (distance >= 0) & (distance < (window or keys))
