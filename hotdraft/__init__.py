"""Speculative decoding whose draft model learns from the traffic it serves.

>>> from hotdraft import LLM, ReplayBuffer, SamplingParams, distill
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotdraft.distillation import Distilled, distill
    from hotdraft.llm import LLM
    from hotdraft.outputs import CompletionOutput, RequestOutput
    from hotdraft.pipeline.models.adapter_folder import AdapterError
    from hotdraft.pipeline.models.names import ModelError
    from hotdraft.pipeline.replay.buffer import ReplayBuffer
    from hotdraft.serving.messages.request import SamplingParams
    from hotdraft.serving.updates.hot_swap import SwapError
    from hotdraft.training.online.context import JobError

__all__ = [
    "LLM",
    "AdapterError",
    "CompletionOutput",
    "Distilled",
    "JobError",
    "ModelError",
    "ReplayBuffer",
    "RequestOutput",
    "SamplingParams",
    "SwapError",
    "distill",
]

_HOMES = {
    "LLM": "hotdraft.llm",
    "CompletionOutput": "hotdraft.outputs",
    "RequestOutput": "hotdraft.outputs",
    "Distilled": "hotdraft.distillation",
    "distill": "hotdraft.distillation",
    "ReplayBuffer": "hotdraft.pipeline.replay.buffer",
    "SamplingParams": "hotdraft.serving.messages.request",
    "AdapterError": "hotdraft.pipeline.models.adapter_folder",
    "JobError": "hotdraft.training.online.context",
    "ModelError": "hotdraft.pipeline.models.names",
    "SwapError": "hotdraft.serving.updates.hot_swap",
}


def __getattr__(name: str) -> Any:
    """The library's names, imported when they are first used: `hotdraft --help` needs no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'hotdraft' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
