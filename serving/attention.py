"""Attention over ragged static slots, registered with transformers under `ATTENTION`."""

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, PreTrainedConfig

from pipeline.models import ModelError

ATTENTION = "hotdraft"


def register_attention() -> None:
    """Let models be loaded with `attn_implementation=ATTENTION`."""
    AttentionInterface.register(ATTENTION, folded_attention)


def check_supported(config: PreTrainedConfig) -> None:
    """Raise `ModelError` for attention that a full causal mask over static slots would get wrong."""
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None) if "layer_types" not in config.to_dict() else None
    if layer_types != {"full_attention"} or window is not None:
        raise ModelError(
            f"{config.model_type} with attention {sorted(layer_types)}"
            + (f" and a sliding window of {window}" if window else "")
            + " is not supported: only full causal attention is"
        )


def groups_of(config: PreTrainedConfig) -> int:
    """Query heads that share a key head."""
    return config.num_attention_heads // (
        getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    )


def folded_attention(
    module: torch.nn.Module | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """Grouped-query attention without copying keys and values: the groups join the query axis.

    Shapes: query [B, G*H, Q, D]; key and value [B, H, K, D]; attention_mask [B, 1, G*Q, K] as
    `causal_mask` makes it. Returns [B, Q, G*H, D].
    """
    if kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None:
        raise ModelError("attention with soft-capping or sinks is not supported")
    batch, heads, length, width = query.shape
    folded = query.reshape(batch, key.shape[1], -1, width)
    output = F.scaled_dot_product_attention(folded, key, value, attn_mask=attention_mask, scale=scaling)
    return output.reshape(batch, heads, length, -1).transpose(1, 2).contiguous(), None


def causal_mask(positions: Tensor, key_length: int, groups: int, dtype: torch.dtype) -> Tensor:
    """[B, 1, groups*Q, key_length], to be added to scores: a query sees keys up to its own position.

    Stale keys beyond a row's length lie after every position of that row, and so stay unseen. In the
    queries' dtype, because a bool mask would be converted anew in every layer.
    """
    keys = torch.arange(key_length, device=positions.device)
    unseen = keys > positions[:, None, :, None]
    mask = torch.zeros(unseen.shape, dtype=dtype, device=positions.device).masked_fill_(unseen, -torch.inf)
    return mask.repeat(1, 1, groups, 1)
