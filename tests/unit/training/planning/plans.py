"""Plans of a pair that is not there."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.training.planning.machine import Available
from hotdraft.training.planning.plan_table import plan_predistill

YI_6B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 64000, "tie_word_embeddings": False,
}  # fmt: skip
GB = 10**9


def settings(
    target: str, *, engine: dict | None = None, replay: dict | None = None, **predistill
) -> HotdraftConfig:
    return HotdraftConfig(
        target=target,
        device="cuda",
        dtype="bfloat16",
        engine={"max_model_len": 2048} | (engine or {}),
        replay={"max_bytes": 10**12} | (replay or {}),
        predistill={"layers": 8, "feed_forward": 7168, "batch_tokens": 8192, "num_slots": 64} | predistill,
    )


def plan_of(config: HotdraftConfig):
    return plan_predistill(config, elsewhere=True)


def room_for(plan_bytes: int) -> Available:
    """A device that just holds so much."""
    return Available(int(plan_bytes / 0.95) + 1000, None, "a test's")


def total(parts: dict[str, int]) -> int:
    return sum(parts.values())


def tiny(layers: int, **changes) -> LlamaForCausalLM:
    sizes = {
        "vocab_size": 128, "hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 8,
        "num_key_value_heads": 2,
    }  # fmt: skip
    config = LlamaConfig(num_hidden_layers=layers, **(sizes | changes))
    torch.manual_seed(0)
    return LlamaForCausalLM(config)
