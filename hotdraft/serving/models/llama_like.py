"""Decoders of Llama's form: what the runners that know their layers ask of a model, and take from it."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hotdraft.pipeline.models.hidden_state_draft import MODEL_TYPE
from hotdraft.serving.models.attention import FULL, attention_windows

MODEL_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3", MODEL_TYPE})
ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotations that depend on the position alone."""


def is_llama_like(model: PreTrainedModel) -> bool:
    """Whether its layers are known so well that a runner can do without its own code."""
    config = model.config
    if config.model_type not in MODEL_TYPES or set(attention_windows(config)) != {FULL}:
        return False
    linears = (module for module in model.modules() if isinstance(module, nn.Linear))
    if any(type(module) is not nn.Linear for module in linears):  # quantised, for one
        return False
    return model.model.rotary_emb.rope_type in ROPE_TYPES


def rotations(model: PreTrainedModel, dtype: torch.dtype, max_length: int) -> tuple[Tensor, Tensor]:
    """cos and sin [max_length, 1, D] of every position, sin signed for x·cos + swap_halves(x)·sin."""
    positions = torch.arange(max_length, device=model.device)[None]
    cos, sin = model.model.rotary_emb(torch.zeros(1, dtype=dtype, device=model.device), positions)
    sin[..., : sin.shape[-1] // 2].neg_()
    return cos[0, :, None], sin[0, :, None]
