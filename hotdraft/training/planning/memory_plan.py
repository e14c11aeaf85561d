"""What a pre-distillation takes, moment by moment, from configurations alone: no weights are read."""

from dataclasses import dataclass
from typing import Self

import torch
from transformers import PreTrainedModel

from hotdraft.pipeline.config.learning import PredistillConfig
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.system.disk import replay_bytes
from hotdraft.training.drafts.model_size import Widths, linear_layers, weights
from hotdraft.training.fit.lora import target_modules
from hotdraft.training.planning.training_memory import (
    MASTER,
    MOMENTS,
    Parameters,
    layer_bytes,
    shards,
    state_bytes,
    step_bytes,
)
from hotdraft.training.scoring.target_scores import ROWS_PER_CHUNK

RUNTIME = {"cuda": 1_000_000_000, "cpu": 900_000_000}
"""A CUDA context with its libraries' workspaces; on a CPU the interpreter with all that is imported."""
HEAP_GAPS = 0.7
"""On a CPU: what the C library's heap keeps beyond what a step uses, as a share of that, at most: `bench_plan`
measured 0.2 to 0.7 with glibc, and next to nothing with MALLOC_MMAP_THRESHOLD_=65536, where tensors stay out."""
STACKED = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
"""Layers whose weights the engine stacks, a copy, before it lets go of the loaded ones."""
SAMPLED_COPIES = 4
"""Float32 copies of a round's logits when tokens are sampled: widened, scaled, one-hot and probabilities."""
SCORED_COPIES = 3
"""Likewise when texts are scored: widened, their log-sum-exp's shifted and exponentiated."""
READ_POSITION, READ_KEPT = 25, 6
"""Bytes in memory of a recorded output position, and of each target token kept there."""
CHECKPOINTS = 2
"""Of the last state and of the best weights: a new one is written before the former is deleted."""


@dataclass(frozen=True)
class Run:
    """What is to be run where."""

    config: HotdraftConfig
    target: PreTrainedModel
    """On the `meta` device."""
    draft: PreTrainedModel
    """Likewise."""
    freeze_shared: bool
    """The draft's embedding and head are the target's and do not train."""
    device: str
    """cuda or cpu."""
    dtype: torch.dtype
    prompts: int
    text_tokens: int = 0

    @property
    def settings(self) -> PredistillConfig:
        return self.config.predistill

    @property
    def parameters(self) -> Parameters:
        return Parameters.of(self.draft, self.settings, self.dtype, freeze_shared=self.freeze_shared)

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
class Moment:
    """Bytes held at one time, by what holds them."""

    name: str
    parts: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())


@dataclass(frozen=True)
class MemoryPlan:
    run: Run
    recording: tuple[Moment, ...]
    """Memory of a device while the target answers and scores."""
    training: tuple[Moment, ...]
    """Memory of a device from when the draft is made."""
    disk: Moment

    @property
    def peak(self) -> Moment:
        return max((*self.recording, *self.training), key=lambda moment: moment.total)


def plan_memory(run: Run) -> MemoryPlan:
    """Raises `LoraError` for adapters that the draft cannot carry."""
    runtime = {"runtime": RUNTIME[run.device]}
    return MemoryPlan(
        run,
        recording=tuple(Moment(m.name, m.parts | runtime) for m in _recording(run)),
        training=tuple(Moment(m.name, m.parts | runtime) for m in _training(run)),
        disk=_disk(run),
    )


@dataclass(frozen=True)
class _Engine:
    """A model that answers, in bytes."""

    weights: int
    copies: int
    """Held beside the weights while the engine is built."""
    cache: int
    work: int

    @classmethod
    def of(cls, run: Run, model: PreTrainedModel) -> Self:
        widths, size = Widths.of(model.config), run.dtype.itemsize
        head = weights([model.get_output_embeddings()])
        tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
        packed = run.device == "cpu" and run.dtype == torch.bfloat16
        copied = linear_layers(model, target_modules(model, "all-linear") if packed else STACKED)
        slots = min(run.settings.num_slots, max(run.prompts, 1))
        length = run.config.engine.max_model_len
        return cls(
            weights=size * (model.num_parameters() + (head if packed and tied else 0)),
            copies=size * weights(copied),
            cache=size * widths.cache * slots * length,
            work=size * length * (4 * widths.hidden + 2 * widths.queries + 4 * widths.feed_forward)
            + slots * widths.vocabulary * (size + MASTER * SAMPLED_COPIES),
        )


def _recording(run: Run) -> list[Moment]:
    settings = run.settings
    target, draft = (_Engine.of(run, model) for model in (run.target, run.draft))
    moments = [
        Moment(
            "loading the target",
            {"target": target.weights, "layers being stacked": target.copies, "keys and values": target.cache},
        ),
        Moment(
            "answering", {"target": target.weights, "keys and values": target.cache, "activations": target.work}
        ),
    ]
    if settings.sources or settings.on_policy_fraction:
        moments.append(Moment("scoring", {"target": target.weights, "activations": _scoring(run)}))
    if settings.on_policy_fraction:
        moments[-1].parts.update({"draft": draft.weights + draft.copies, "keys and values": draft.cache})
    return moments


def _scoring(run: Run) -> int:
    widths, size = Widths.of(run.target.config), run.dtype.itemsize
    logits = ROWS_PER_CHUNK * widths.vocabulary * (size + MASTER * SCORED_COPIES)
    return logits + run.settings.batch_tokens * layer_bytes(widths, size, residual=size, adapted=False)


def _training(run: Run) -> list[Moment]:
    settings, parameters = run.settings, run.parameters
    state = state_bytes(run.draft, parameters, settings)
    step = step_bytes(run.draft, parameters, settings, run.dtype, freeze_shared=run.freeze_shared)
    saving = {"AdamW's temporaries": MASTER * parameters.trainable // shards(settings)}
    if run.device == "cpu":
        saving = {"checkpoint being written": (MASTER + MOMENTS) * parameters.trainable}
        step["gaps in the heap"] = int(HEAP_GAPS * sum(step.values()))
        state["recorded answers"] = run.recorded_tokens * (READ_POSITION + READ_KEPT * run.config.recorder.top_k)
    size = run.dtype.itemsize
    making = {"target": size * run.target.num_parameters(), "draft": size * parameters.total}
    if settings.draft is None:
        making["tensors being cut"] = size * parameters.total
    return [
        Moment("making the draft", making),
        Moment("training", state | step),
        Moment("updating and saving", state | saving),
    ]


def _disk(run: Run) -> Moment:
    parameters = run.parameters
    return Moment(
        "disk",
        {
            "recorded answers": replay_bytes(run.recorded_tokens, run.config.recorder.top_k),
            "checkpoints": CHECKPOINTS * (2 * MASTER + MOMENTS) * parameters.trainable,
            "the draft": run.dtype.itemsize * parameters.total,
        },
    )
