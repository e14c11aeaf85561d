"""What a pre-distillation takes, from configurations alone: no weights are read."""

from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from hotdraft.pipeline.config.learning import PredistillConfig
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import shared_modules
from hotdraft.pipeline.system.disk import replay_bytes
from hotdraft.training.drafts.model_size import Widths, linear_layers, weights
from hotdraft.training.fit.lora import target_modules
from hotdraft.training.scoring.forward import CHUNK_LOGITS, STEPS
from hotdraft.training.scoring.target_reader import MOST_BYTES

RUNTIME = {"cuda": 1_000_000_000, "cpu": 900_000_000}
"""A CUDA context with its libraries' workspaces; on a CPU the interpreter with all that is imported."""
FLOAT32 = 4
"""Bytes of a trainable parameter, of its gradient, and of each of AdamW's two moments."""
NF4 = 0.516
"""Bytes of a weight in NF4 with its scales, quantised twice (Dettmers et al., 2023, section 3)."""
WIDENED = 50_000_000
"""Rows of a chunk's logits in float32, a few at a time."""
STACKED = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
"""Layers whose weights the engine stacks, a copy, before it lets go of the loaded ones."""
SAMPLED_COPIES = 4
"""Float32 copies of a round's logits when tokens are sampled: widened, scaled, one-hot and probabilities."""
READ_POSITION, READ_KEPT = 25, 6
"""Bytes in memory of a recorded output position, and of each target token kept there."""


@dataclass(frozen=True)
class Run:
    """What is to be run where."""

    config: HotdraftConfig
    target: PreTrainedModel
    """On the `meta` device."""
    draft: PreTrainedModel
    """Likewise; what it shares with the target is frozen."""
    device: str
    """cuda or cpu."""
    dtype: torch.dtype
    prompts: int
    text_tokens: int = 0

    @property
    def settings(self) -> PredistillConfig:
        return self.config.predistill

    @property
    def adapted(self) -> list[nn.Linear]:
        """The layers that an adapter is on."""
        return linear_layers(self.draft, target_modules(self.draft, self.settings.lora.target_modules))

    @property
    def trainable(self) -> int:
        """Parameters."""
        if self.settings.method == "full":
            return sum(parameter.numel() for parameter in self.draft.parameters() if parameter.requires_grad)
        return sum(self.settings.lora.rank * (layer.in_features + layer.out_features) for layer in self.adapted)

    @property
    def answer_tokens(self) -> int:
        """Tokens to be generated, if every answer is as long as it may be."""
        return int(self.prompts * (1 + self.settings.on_policy_fraction)) * self.settings.max_tokens

    @property
    def recorded_tokens(self) -> int:
        return self.answer_tokens + self.text_tokens

    @property
    def train_tokens(self) -> int:
        """Tokens that one device reads in training."""
        return self.settings.max_steps * self.settings.accumulate * self.settings.batch_tokens


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes by what holds them, at the peak of each."""

    run: Run
    recording: dict[str, int]
    """Memory of a device while the target answers."""
    training: dict[str, int]
    """Memory of a device."""
    disk: dict[str, int]


def plan_memory(run: Run) -> MemoryPlan:
    """Raises `LoraError` for adapters that the draft cannot carry."""
    disk = {
        "recorded answers": replay_bytes(run.recorded_tokens, run.config.recorder.top_k),
        "checkpoints": 2 * 4 * FLOAT32 * run.trainable,  # a new one is written before the former is deleted
        "the draft": run.dtype.itemsize * run.draft.num_parameters(),
    }
    return MemoryPlan(run, _recording(run), _state(run) | _step(run), disk)


def _recording(run: Run) -> dict[str, int]:
    """Scoring takes less: it has neither the cache nor the copies, which are more than a draft."""
    widths, size = Widths.of(run.target.config), run.dtype.itemsize
    slots, length = min(run.settings.num_slots, max(run.prompts, 1)), run.config.engine.max_model_len
    work = size * length * (4 * widths.hidden + 2 * widths.queries + 4 * widths.feed_forward)
    work += slots * widths.vocabulary * (size + FLOAT32 * SAMPLED_COPIES)
    return {
        "target": size * run.target.num_parameters(),
        "keys and values": size * 2 * widths.layers * widths.keys * slots * length,
        "activations, or layers being stacked": max(work, size * weights(linear_layers(run.target, STACKED))),
        "runtime": RUNTIME[run.device],
    }


def _state(run: Run) -> dict[str, int]:
    """What is held from step to step.

    FSDP shards all of it (Rajbhandari et al., 2020, stage 3) and gathers what it computes with: at its peak
    what is outside of the layers, two layers, and the gradients of one.
    """
    settings, size, trainable = run.settings, run.dtype.itemsize, run.trainable
    shards = settings.devices if settings.strategy == "fsdp" else 1
    frozen = size * run.draft.num_parameters()  # an adapter is merged into it in the end
    if settings.method == "full":
        frozen -= size * trainable
    elif settings.method == "qlora":
        frozen += int(NF4 * weights(run.adapted))
    parts = {
        "frozen weights": frozen // shards,
        "trained weights, float32": FLOAT32 * trainable // shards,
        "gradients": FLOAT32 * trainable // shards,
        "AdamW state": 2 * FLOAT32 * trainable // shards,
        "runtime": RUNTIME[run.device],
    }
    if shards > 1:
        outside = FLOAT32 * sum(p.numel() for module in shared_modules(run.draft) for p in module.parameters())
        layers = 3 * (frozen + FLOAT32 * trainable) // Widths.of(run.draft.config).layers
        parts["gathered by FSDP"] = outside + layers
    if settings.hidden_states is not None:
        parts["target"] = size * run.target.num_parameters()
        parts["target's states"] = MOST_BYTES
    if run.device == "cpu":
        parts["recorded answers"] = run.recorded_tokens * (READ_POSITION + READ_KEPT * run.config.recorder.top_k)
    return parts


def _step(run: Run) -> dict[str, int]:
    """What a step adds at its peak, when the backward pass begins."""
    settings, widths, size = run.settings, Widths.of(run.draft.config), run.dtype.itemsize
    tokens, full = settings.batch_tokens, settings.method == "full"
    trains_head = full and all(parameter.requires_grad for parameter in run.draft.parameters())
    residual = FLOAT32 if trains_head else size
    layer = tokens * layer_bytes(widths, size, residual=residual, adapted=not full)
    steps = 1 if settings.hidden_states is None else STEPS
    activations = steps * widths.layers * layer
    if settings.activation_checkpointing:
        activations = widths.layers * tokens * widths.hidden * residual + layer
    chunk = min(tokens * widths.vocabulary, max(CHUNK_LOGITS, widths.vocabulary))
    parts = {
        "activations": activations,
        "gradients of activations": layer,
        "chunk of logits, gradient": 2 * chunk * size + WIDENED,
    }
    if trains_head:
        parts["gradient of the head"] = 2 * FLOAT32 * weights([run.draft.get_output_embeddings()])
    if size < FLOAT32:
        parts["trained weights, cast"] = size * run.trainable
    return parts


def layer_bytes(widths: Widths, compute: int, *, residual: int, adapted: bool) -> int:
    """Bytes that autograd keeps of one layer for one token.

    The count of Korthikanti et al. (2022), section 4.1, for a Llama layer as transformers runs it: RMS norms
    in float32, gated feed-forward, fused attention (which keeps no scores), no dropout. Under autocast every linear
    layer that trains, or whose adapter does, keeps its own cast of the input.
    `compute` and `residual` are bytes of an element in the layer and between layers.
    """
    hidden, queries, feed_forward = widths.hidden, widths.queries, widths.feed_forward
    norms = 2 * (FLOAT32 if adapted else FLOAT32 + residual) * hidden
    inputs = (5 if compute < FLOAT32 else 2) * compute * hidden
    attention = compute * (3 * queries + 2 * widths.keys)  # the joined outputs of requests are a copy
    cast = compute * queries if adapted and compute < FLOAT32 else 0
    return norms + inputs + attention + 4 * compute * feed_forward + cast
