"""Attention over ragged static slots, registered with transformers under `ATTENTION`."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AttentionInterface, PreTrainedConfig

from hotdraft.pipeline.models.names import ModelError

ATTENTION = "hotdraft"
OWN_ATTENTION = frozenset({"bloom", "falcon", "gpt_neo", "mpt"})
"""Of which transformers has code that takes no other."""
FULL, SLIDING = "full_attention", "sliding_attention"


def register_attention() -> None:
    """Let models be loaded with `attn_implementation=ATTENTION`."""
    AttentionInterface.register(ATTENTION, folded_attention)


def check_supported(config: PreTrainedConfig, max_length: int) -> None:
    """Raise `ModelError` for attention that static slots of `max_length` tokens would get wrong."""
    if config.model_type in OWN_ATTENTION:
        raise ModelError(f"{config.model_type} has an attention of its own kind, which is not supported")
    if getattr(MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None), "_is_stateful", False):
        raise ModelError(f"{config.model_type} has a state of its own kind, which slots cannot hold")
    unknown = set(attention_windows(config)) - {FULL, SLIDING}
    if unknown:
        raise ModelError(
            f"{config.model_type} with attention {sorted(unknown)} is not supported: "
            "only full causal attention and sliding windows are"
        )
    for kind, limit in _rotation_limits(config):
        if max_length > limit:
            raise ModelError(
                f"{config.model_type} with {kind} RoPE turns every request of a batch by the length of its longest "
                f"beyond {limit} tokens, and slots have {max_length}: lower engine.max_model_len"
            )


def attention_windows(config: PreTrainedConfig) -> dict[str, int | None]:
    """Of each kind of layer how many tokens a query sees, its own included; None is all of them."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) if "layer_types" in config.to_dict() else None
    if not kinds:
        return {FULL if window is None else SLIDING: window}
    return {kind: window if kind == SLIDING else None for kind in kinds}


def _rotation_limits(config: PreTrainedConfig) -> Iterator[tuple[str, int]]:
    """Rotations that depend on the longest request of a batch, and the length up to which they do not.

    As transformers has them (`dynamic_rope_update`): beyond it the frequencies change for every row.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    for one in [rope] if "rope_type" in rope else [part for part in rope.values() if isinstance(part, dict)]:
        kind = one.get("rope_type", "default")
        if "dynamic" in kind:
            yield kind, config.max_position_embeddings
        elif kind == "longrope":
            yield kind, one.get("original_max_position_embeddings") or config.max_position_embeddings


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


def causal_mask(
    positions: Tensor,
    key_length: int,
    groups: int,
    dtype: torch.dtype,
    window: int | None = None,
    own_keys: Tensor | None = None,
) -> Tensor:
    """[B, 1, groups*Q, key_length], to be added to scores: a query sees keys before its position, and its own.

    Of these the last `window` if that is given. Its own is at its position, or where `own_keys` int64 [B, Q] says.
    Stale keys beyond a row's length lie after every position of that row, and so stay unseen. In the queries'
    dtype, because a bool mask would be converted anew in every layer.
    """
    keys = torch.arange(key_length, device=positions.device)
    own = positions[:, None, :, None]
    unseen = keys > own if own_keys is None else (keys >= own) & (keys != own_keys[:, None, :, None])
    if window is not None:
        unseen = unseen | (keys <= own - window)
    mask = torch.zeros(unseen.shape, dtype=dtype, device=positions.device).masked_fill_(unseen, -torch.inf)
    return mask.repeat(1, 1, groups, 1)
