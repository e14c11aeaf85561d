"""How many operations a forward is: on a GPU each is a launch, and that is what a round of few tokens takes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from hotdraft.serving.models.attention import ATTENTION, register_attention
from hotdraft.serving.models.fused_runner import FusedRunner
from hotdraft.serving.models.linear import ServedLinear
from hotdraft.serving.models.runner import Runner, Window
from hotdraft.serving.models.transformers_runner import TransformersRunner

ALLOCATES = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view"}
"""Operations that compute nothing, and do not say that what they return is a view."""


class Launches(TorchDispatchMode):
    """Counts operations that compute, by name, and views and allocations not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returns = func._schema.returns
        is_view = any(one.alias_info is not None and not one.alias_info.is_write for one in returns)
        name = func._schema.name.removeprefix("aten::")
        self.count += bool(returns) and not is_view and name not in ALLOCATES
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Forward:
    """Launches of a forward of few tokens."""

    layer: int
    outside: int
    """Embedding, mask, rotations, last norm and head."""

    def of(self, layers: int) -> int:
        return self.layer * layers + self.outside


def count(make_runner: Callable[..., Runner], device: torch.device) -> Forward:
    """Of a Llama by a kind of runner: what a second layer adds, and what is left of the first."""
    one, two = (_count_layers(make_runner, layers, device) for layers in (1, 2))
    return Forward(layer=two - one, outside=2 * one - two)


def of_both_runners(device: torch.device) -> dict[str, Forward]:
    """Before and after operations were fused: by transformers' layers, and by our own."""
    return {"transformers": count(TransformersRunner, device), "fused": count(FusedRunner, device)}


@torch.inference_mode()
def _count_layers(make_runner: Callable[..., Runner], layers: int, device: torch.device) -> int:
    register_attention()
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config).eval().to(device)
    model.set_attn_implementation(ATTENTION)
    head = ServedLinear({"head.weight": model.lm_head.weight.detach()}, None)
    runner = make_runner(model, head, 1, 64, why_not_native="launches are counted")
    window = Window(slice(0, 1), torch.zeros(1, 1, dtype=torch.int64, device=device), 64)
    token_ids = torch.zeros_like(window.positions)
    runner.forward(window, token_ids, 1)  # the first makes a cache
    with Launches() as launches:
        runner.forward(window, token_ids, 1)
    return launches.count
