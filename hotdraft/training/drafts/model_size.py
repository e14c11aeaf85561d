"""How large a model is, from its configuration alone: built on torch's `meta` device, it has no data."""

import copy
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from hotdraft.pipeline.models.names import ModelError


def meta_model(config: PreTrainedConfig) -> PreTrainedModel:
    """The causal LM of `config` without data. Raises `ModelError` if it is none."""
    loader: Any = AutoModelForCausalLM
    try:
        with torch.device("meta"):
            return loader.from_config(copy.deepcopy(config))
    except (ValueError, KeyError) as error:
        raise ModelError(f"{config.model_type!r} is no causal LM that transformers can build: {error}") from error


@dataclass(frozen=True)
class Widths:
    """Sizes of a transformer's tensors, in elements a token."""

    layers: int
    hidden: int
    queries: int
    """All heads' queries together."""
    keys: int
    """All heads' keys together; the values are as many."""
    feed_forward: int
    vocabulary: int

    @classmethod
    def of(cls, config: PreTrainedConfig) -> Self:
        text = config.get_text_config()
        heads = text.num_attention_heads
        head_size = getattr(text, "head_dim", None) or text.hidden_size // heads
        return cls(
            layers=text.num_hidden_layers,
            hidden=text.hidden_size,
            queries=heads * head_size,
            keys=(getattr(text, "num_key_value_heads", None) or heads) * head_size,
            feed_forward=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
            vocabulary=text.vocab_size,
        )


def linear_layers(model: PreTrainedModel, names: Collection[str]) -> list[nn.Linear]:
    """The linear layers of which the last part of the name is one of `names`."""
    return [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name.rsplit(".", 1)[-1] in names
    ]


def weights(layers: Iterable[nn.Linear]) -> int:
    return sum(layer.weight.numel() for layer in layers)
