"""What drafting with a model will cost, from configs alone: sizes, bytes a step reads, and when it pays.

Decoding a few requests is bound by memory: a step takes as long as reading its weights. Then verifying
k + 1 tokens costs what one plain step does, and a draft step its share of bytes, the cost ratio c.
Caches are left out, and of a mixture of experts all experts are counted.
"""

from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from transformers import PreTrainedConfig

from hotdraft.training.drafts.model_size import meta_model

EXAMPLES = (0.3, 0.5, 0.7, 0.9)
"""Acceptances at which the table shows the speed-up."""


@dataclass(frozen=True)
class ModelCost:
    """One model's size; bytes are those of its weights in the dtype asked for."""

    layers: int
    feed_forward: int | None
    """Intermediate channels of a layer, where the config tells."""
    parameters: int
    parameters_without_embedding: int
    """Without the input embedding and, where it is the same matrix, the output head."""
    bytes: int
    bytes_per_step: int
    """What a decoding step reads: all weights but the input embedding, of which a step reads a row."""


@dataclass(frozen=True)
class DraftCost:
    target: ModelCost
    draft: ModelCost
    head_size: int
    """Tokens that the draft's output head covers."""
    max_k: int

    @property
    def cost_ratio(self) -> float:
        """c of Leviathan et al. (2023): a draft step over a plain step of the target."""
        return self.draft.bytes_per_step / self.target.bytes_per_step

    @property
    def break_even(self) -> float | None:
        """The acceptance above which some k makes decoding faster; None if none does.

        It is c itself, whatever `max_k`: k = 1 gains when (1 + a) / (1 + c) > 1, and for a ≤ c no k does,
        since 1 + a + … + a^k ≤ 1 + kc (Leviathan et al., 2023, corollary 3.9).
        """
        return self.cost_ratio if self.cost_ratio < 1 else None

    def best_k(self, acceptance: float) -> int:
        """The k of 0 … `max_k` that is fastest at `acceptance`."""
        return max(range(self.max_k + 1), key=lambda k: predicted_speed_up(acceptance, k, self.cost_ratio))

    def speed_up(self, acceptance: float) -> float:
        """What the best k is predicted to gain over plain decoding: 1 if nothing is drafted."""
        return predicted_speed_up(acceptance, self.best_k(acceptance), self.cost_ratio)


def predicted_cost(
    target_config: PreTrainedConfig,
    draft_config: PreTrainedConfig,
    *,
    head_size: int | None,
    max_k: int,
    dtype: torch.dtype,
) -> DraftCost:
    """Costs of a pair whose draft's head covers `head_size` tokens; None is its whole vocabulary."""
    vocab_size = draft_config.get_text_config().vocab_size
    head_size = vocab_size if head_size is None else min(head_size, vocab_size)
    return DraftCost(
        _model_cost(target_config, None, dtype), _model_cost(draft_config, head_size, dtype), head_size, max_k
    )


def predicted_speed_up(acceptance: float, k: int, cost_ratio: float) -> float:
    """Tokens a second over plain decoding's with k drafted tokens: (1 − a^(k+1)) / ((1 − a)(kc + 1)).

    Leviathan et al. (2023), equation 1 and theorem 3.8. `acceptance` is the chance a that a drafted token
    is accepted when those before it were, the same at all positions.
    """
    return sum(acceptance**position for position in range(k + 1)) / (k * cost_ratio + 1)


def show_cost(cost: DraftCost) -> None:
    """Print the pair's sizes as a table, and below it what drafting is predicted to cost and to gain."""
    console = Console(markup=False)
    table = Table("", "target", "draft", title="The pair")
    for column in table.columns[1:]:
        column.justify = "right"
    pair = (cost.target, cost.draft)
    table.add_row("layers", *(str(model.layers) for model in pair))
    table.add_row("feed-forward channels", *(str(model.feed_forward or "?") for model in pair))
    table.add_row("parameters", *(f"{model.parameters / 1e6:,.1f} M" for model in pair))
    table.add_row(
        "without the embedding", *(f"{model.parameters_without_embedding / 1e6:,.1f} M" for model in pair)
    )
    table.add_row("weights", *(f"{model.bytes / 1e6:,.1f} MB" for model in pair))
    table.add_row("read by a decoding step", *(f"{model.bytes_per_step / 1e6:,.1f} MB" for model in pair))
    console.print(table)
    console.print(describe_cost(cost), highlight=False, soft_wrap=True)


def describe_cost(cost: DraftCost) -> str:
    """The prediction in words."""
    told = f"Predicted cost ratio c = {cost.cost_ratio:.3f} with a head of {cost.head_size:,} tokens: "
    if cost.break_even is None:
        return told + "a draft step reads no less than a step of the target, so drafting cannot pay."
    gains = ", ".join(f"{cost.speed_up(a):.2f}x at {a} (k = {cost.best_k(a)})" for a in EXAMPLES)
    return told + (
        f"drafting pays where more than {cost.break_even:.3f} of the drafted tokens are accepted. "
        f"Predicted speed-up: {gains}."
    )


def _model_cost(config: PreTrainedConfig, head_size: int | None, dtype: torch.dtype) -> ModelCost:
    model = meta_model(config)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    total = _count(model)  # a tied matrix counts once
    body = total - _count(embedding) - (0 if head.weight is embedding.weight else _count(head))
    per_token = _count(head) // head.weight.shape[0]
    read = body + (_count(head) if head_size is None else head_size * per_token)
    text_config = config.get_text_config()
    width = getattr(text_config, "intermediate_size", None)
    return ModelCost(
        layers=text_config.num_hidden_layers,
        feed_forward=width if isinstance(width, int) else None,
        parameters=total,
        parameters_without_embedding=total - _count(embedding),
        bytes=total * dtype.itemsize,
        bytes_per_step=read * dtype.itemsize,
    )


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
