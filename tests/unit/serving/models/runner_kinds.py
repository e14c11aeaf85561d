"""Models of every kind that runners compute, and the runners."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from hotdraft.serving.models.attention import ATTENTION, register_attention
from hotdraft.serving.models.fused_runner import FusedRunner
from hotdraft.serving.models.linear import ServedLinear
from hotdraft.serving.models.native_runner import NativeRunner
from hotdraft.serving.models.runner import Runner
from hotdraft.serving.models.transformers_runner import TransformersRunner
from hotdraft.serving.native.bindings import Format, NativeError, ThreadPool, find_instructions, supports
from hotdraft.serving.native.linear import NativeLinear
from hotdraft.serving.native.memory import WeightMemory

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama, one head each": {"model_type": "llama", "num_key_value_heads": 4},
    "llama, biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama, tied": {"model_type": "llama", "tie_word_embeddings": True},
    "llama, llama3 rope": {"model_type": "llama", "rope": LLAMA3},
    "llama, yarn rope": {"model_type": "llama", "rope": YARN},
    "llama, linear rope": {"model_type": "llama", "rope": {"rope_type": "linear", "factor": 3.0}},
    "mistral, wide heads": {"model_type": "mistral", "sliding_window": None, "head_dim": 16},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "head_dim": 16, "num_key_value_heads": 1},
    "odd sizes": {"model_type": "qwen2", "hidden_size": 40, "intermediate_size": 50, "vocab_size": 71},
    "heads of 80": {"model_type": "llama", "head_dim": 80, "attention_bias": True},
    "heads of 128": {"model_type": "qwen3", "head_dim": 128},
}
WINDOW = 5
WINDOWED: dict[str, dict[str, Any]] = {
    "mistral": {"model_type": "mistral", "sliding_window": WINDOW},
    "qwen2, every other layer": {
        "model_type": "qwen2", "use_sliding_window": True, "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "qwen3, all layers": {
        "model_type": "qwen3", "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 0,
    },
    "gemma3": {
        "model_type": "gemma3_text", "sliding_window": WINDOW, "head_dim": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}  # fmt: skip
SLOTS, MAX_LENGTH = 4, 48
LENGTHS = [3, 17, 9]
"""Prompt lengths of the slots in use."""
STEPS = [4, 1, 1, 6]
"""Tokens that follow for every row, window by window."""


def make(model_type: str, rope: dict[str, Any] | None = None, **changes: Any) -> PreTrainedModel:
    """A random model whose biases and norms do something, too."""
    register_attention()
    config = AutoConfig.for_model(model_type, **{**SIZES, **changes})
    if rope is not None:
        config.rope_parameters = {"rope_theta": 10000.0, "original_max_position_embeddings": 16, **rope}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


Kind = Callable[[PreTrainedModel], Runner]


def by_torch(kind: type[FusedRunner] | type[TransformersRunner]) -> Kind:
    def make_runner(model: PreTrainedModel) -> Runner:
        head = ServedLinear.of({"head": model.get_output_embeddings()})
        return kind(model, head, SLOTS, MAX_LENGTH, why_not_native="torch is meant")

    return make_runner


def natively(instructions: str, format: Format | None = None, threads: int = 2) -> Kind:
    """With weights of the model's own dtype, if `format` names no other."""

    def make_runner(model: PreTrainedModel) -> Runner:
        weights = format or (Format.BFLOAT16 if model.dtype == torch.bfloat16 else Format.FLOAT32)
        memory = WeightMemory()
        head = NativeLinear.of({"head": model.get_output_embeddings()}, weights, memory)
        pool = ThreadPool(instructions, threads)
        return NativeRunner(model, head, SLOTS, MAX_LENGTH, format=weights, memory=memory, pool=pool)

    return make_runner


def can(instructions: str) -> bool:
    try:
        return find_instructions(instructions) == instructions
    except NativeError:
        return False


INSTRUCTIONS = [name for name in ("amx", "avx512_bf16", "avx512", "avx2") if can(name)]
OF_BFLOAT16 = [name for name in INSTRUCTIONS if supports(name, Format.W8A16)]
KINDS = {
    "fused": by_torch(FusedRunner),
    "transformers": by_torch(TransformersRunner),
    **{name: natively(name) for name in INSTRUCTIONS},
}
