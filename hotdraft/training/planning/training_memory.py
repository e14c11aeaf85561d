"""What training a draft takes on one device, in bytes."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import nn
from transformers import PreTrainedModel

from hotdraft.pipeline.config.learning import PredistillConfig
from hotdraft.training.drafts.model_size import Widths, linear_layers, lora_parameters, shared_parameters, weights
from hotdraft.training.fit.lora import target_modules
from hotdraft.training.scoring.forward import CHUNK_LOGITS

MASTER, GRADIENT, MOMENTS = 4, 4, 8
"""Bytes of a trainable parameter: float32 throughout, with AdamW's two moments."""
NF4 = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes of a weight in NF4: 4 bits, a scale of 8 bits for 64 weights, and the scales' own float32 scale for
256 of them (double quantisation; Dettmers et al., 2023, section 3)."""
WIDENED = 50_000_000
"""Rows of a chunk's logits in float32, a few at a time."""


@dataclass(frozen=True)
class Parameters:
    """Which of a draft's parameters train, and what the others weigh."""

    total: int
    trainable: int
    frozen_bytes: int
    shared_bytes: int
    """Embedding and output head, trainable or not."""

    @classmethod
    def of(
        cls, draft: PreTrainedModel, settings: PredistillConfig, dtype: torch.dtype, *, freeze_shared: bool
    ) -> Self:
        """With `freeze_shared` embedding and head stay as they are, whatever the method."""
        total, shared = draft.num_parameters(), shared_parameters(draft)
        if settings.method == "full":
            frozen = shared if freeze_shared else 0
            shared_bytes = shared * (dtype.itemsize if freeze_shared else MASTER)
            return cls(total, total - frozen, frozen * dtype.itemsize, shared_bytes)
        adapted = _adapted(draft, settings)
        quantized = weights(adapted) if settings.method == "qlora" else 0
        # beside NF4 the draft itself stays: the adapter is merged into it
        frozen_bytes = total * dtype.itemsize + int(quantized * NF4)
        return cls(total, lora_parameters(adapted, settings.lora.rank), frozen_bytes, shared * dtype.itemsize)


def shards(settings: PredistillConfig) -> int:
    return settings.devices if settings.strategy == "fsdp" else 1


def state_bytes(draft: PreTrainedModel, parameters: Parameters, settings: PredistillConfig) -> dict[str, int]:
    """Weights, gradients and optimiser state, by name.

    FSDP shards all of them (Rajbhandari et al., 2020, stage 3) and gathers what it computes with: at its peak
    what is outside of the layers, two layers, and the gradients of one.
    """
    trainable, number = parameters.trainable, shards(settings)
    parts = {
        "frozen weights": parameters.frozen_bytes // number,
        "trained weights, float32": MASTER * trainable // number,
        "gradients": GRADIENT * trainable // number,
        "AdamW state": MOMENTS * trainable // number,
    }
    if number > 1:
        held = parameters.frozen_bytes + MASTER * trainable
        layers = Widths.of(draft.config).layers
        parts["gathered by FSDP"] = parameters.shared_bytes + 3 * (held - parameters.shared_bytes) // layers
    return parts


def step_bytes(
    draft: PreTrainedModel,
    parameters: Parameters,
    settings: PredistillConfig,
    dtype: torch.dtype,
    *,
    freeze_shared: bool,
) -> dict[str, int]:
    """What a step adds to the state, by name, at its peak: when the backward pass begins."""
    widths, tokens = Widths.of(draft.config), settings.batch_tokens
    adapted = settings.method != "full"
    residual = dtype.itemsize if adapted or freeze_shared else MASTER  # that of the embedding's output
    layer = tokens * layer_bytes(widths, dtype.itemsize, residual=residual, adapted=adapted)
    activations = widths.layers * layer
    if settings.activation_checkpointing:
        activations = widths.layers * tokens * widths.hidden * residual + layer
    chunk = min(tokens * widths.vocabulary, max(CHUNK_LOGITS, widths.vocabulary))
    parts = {
        "activations": activations,
        "gradients of activations": layer,
        "chunk of logits, gradient": chunk * dtype.itemsize * 2 + WIDENED,
    }
    if not (adapted or freeze_shared):
        parts["gradient of the head"] = 2 * GRADIENT * weights([draft.get_output_embeddings()])
    if dtype.itemsize < MASTER:
        parts["trained weights, cast"] = parameters.trainable * dtype.itemsize
    if settings.method == "qlora":
        largest = max(module.weight.numel() for module in _adapted(draft, settings))
        parts["one layer dequantised"] = largest * dtype.itemsize
    return parts


def _adapted(draft: PreTrainedModel, settings: PredistillConfig) -> list[nn.Linear]:
    return linear_layers(draft, target_modules(draft, settings.lora.target_modules))


def layer_bytes(widths: Widths, compute: int, *, residual: int, adapted: bool) -> int:
    """Bytes that autograd keeps of one layer for one token.

    The count of Korthikanti et al. (2022), section 4.1, for a Llama layer as transformers runs it: RMS norms
    in float32, gated feed-forward, fused attention (which keeps no scores), no dropout. Under autocast every linear
    layer that trains, or whose adapter does, keeps its own cast of the input.
    `compute` and `residual` are bytes of an element in the layer and between layers.
    """
    hidden, queries, feed_forward = widths.hidden, widths.queries, widths.feed_forward
    norms = 2 * (MASTER if adapted else MASTER + residual) * hidden
    inputs = (5 if compute < MASTER else 2) * compute * hidden
    attention = compute * (3 * queries + 2 * widths.keys)  # the joined outputs of requests are a copy
    gated = 4 * compute * feed_forward
    cast = compute * queries if adapted and compute < MASTER else 0
    return norms + inputs + attention + gated + cast
