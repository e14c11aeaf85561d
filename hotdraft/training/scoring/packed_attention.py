"""Attention within the requests of a packed row, registered with transformers under `PACKED`.

A mask over the whole row would have the kernels compute all pairs of tokens, of which few see each other.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

PACKED = "hotdraft_packed"


def attend_within_requests(model: PreTrainedModel) -> None:
    """Have `model` take the lengths of a row's requests, int64 [1, 1, 1, R] on the CPU, as its attention mask.

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

    Shapes: query [1, G*H, T, D]; key and value [1, H, T, D]; attention_mask as above, without which
    nothing is packed. Returns [1, T, G*H, D].
    """
    window = options.pop("sliding_window", None)
    if attention_mask is None:
        return sdpa_attention_forward(module, query, key, value, _within(window, query, key), **options)
    options["is_causal"] = True
    lengths = attention_mask.flatten().tolist()
    requests = zip(*(tensor.split(lengths, dim=2) for tensor in (query, key, value)), strict=True)
    attended = [
        sdpa_attention_forward(module, q, k, v, _within(window, q, k), **options)[0] for q, k, v in requests
    ]
    return torch.cat(attended, dim=1), None


def _within(window: int | None, query: Tensor, key: Tensor) -> Tensor | None:
    """bool [1, 1, Q, K]: the last `window` keys up to each query's own; None where these are all of them."""
    queries, keys = query.shape[2], key.shape[2]
    if window is None or keys <= window:
        return None
    positions = torch.arange(keys, device=query.device)
    distance = positions[keys - queries :, None] - positions
    return ((distance >= 0) & (distance < window))[None, None]
