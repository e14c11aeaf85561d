"""Answers in batches of ids, and what the target's states were where it gave them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

PASS_TOKENS = 24_576


@dataclass
class Sample:
    domain: str
    prompt: list[int]
    answer: list[int]


@dataclass
class Batch:
    ids: Tensor
    """int64 [R, T], padded at the right: no position sees what comes after it."""
    places: Tensor
    """int64 [N]: of R x T, what an answer's token is predicted from."""
    sample: Tensor
    """int64 [N]: which row each is of."""
    domains: list[str]
    """Of each row."""
    states: Tensor | None = None
    """[N, H]: the target's last, normalised."""


def batches_of(samples: Sequence[Sample], device: torch.device, tokens: int = PASS_TOKENS) -> list[Batch]:
    ordered = sorted(samples, key=lambda sample: len(sample.prompt) + len(sample.answer))
    batches: list[Batch] = []
    group: list[Sample] = []
    for sample in ordered:
        if group and (len(group) + 1) * (len(sample.prompt) + len(sample.answer)) > tokens:
            batches.append(_batch(group, device))
            group = []
        group.append(sample)
    batches.append(_batch(group, device))
    return batches


def _batch(group: Sequence[Sample], device: torch.device) -> Batch:
    width = max(len(one.prompt) + len(one.answer) for one in group)
    ids = torch.zeros(len(group), width, dtype=torch.long)
    places, rows = [], []
    for row, one in enumerate(group):
        whole = one.prompt + one.answer
        ids[row, : len(whole)] = torch.tensor(whole)
        first = row * width + len(one.prompt) - 1
        places.append(torch.arange(first, first + len(one.answer)))
        rows.append(torch.full((len(one.answer),), row))
    return Batch(
        ids.to(device), torch.cat(places).to(device), torch.cat(rows).to(device), [one.domain for one in group]
    )


def states_of(model: nn.Module, batch: Batch) -> Tensor:
    hidden: Tensor = model.model(input_ids=batch.ids, use_cache=False).last_hidden_state
    return hidden.flatten(0, 1)[batch.places]


def score(model: nn.Module, batches: Sequence[Batch]) -> None:
    with torch.no_grad():
        for batch in batches:
            batch.states = states_of(model, batch)
