"""A model with its slots of keys and values, as the decoder runs it."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from hotdraft.serving.models.linear import ServedLinear


@dataclass(frozen=True)
class Window:
    """The part of the slots that a forward writes and reads."""

    rows: slice
    positions: Tensor
    """int64 [B, Q]: where each new key goes in its row."""
    key_length: int
    """Keys that attention reads, from position 0."""


class Runner(Protocol):
    """Computes logits and keeps the keys and values they need.

    Rewinding is only a smaller length on the caller's side: keys beyond it are masked and later
    overwritten, so a runner keeps no lengths at all.
    """

    head: nn.Module
    linears: list[ServedLinear]
    """All linear layers but the head."""

    def forward(self, window: Window, token_ids: Tensor, keep: int) -> Tensor:
        """Logits [B, keep, N] of the last `keep` of token_ids [B, Q], a column for each token of the head."""
        ...

    def move(self, source: int, destination: int, length: int) -> None:
        """Copy the first `length` positions of a slot over another's."""
        ...

    def clear(self, slot: int) -> None:
        """Zero a slot's keys and values."""
        ...
