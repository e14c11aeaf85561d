"""A model with its slots of keys and values, as the decoder runs it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from torch import Tensor, nn

from hotdraft.serving.models.linear import ServedLinear
from hotdraft.serving.native.linear import NativeLinear

if TYPE_CHECKING:
    from hotdraft.serving.models.hidden_states.target_states import TargetStates


@dataclass(frozen=True)
class Window:
    """The part of the slots that a forward writes and reads."""

    rows: slice
    positions: Tensor
    """int64 [B, Q]: of each token in its row."""
    key_length: int
    """Keys that attention reads, from position 0."""
    counts: Tensor | None = None
    """int32 [B]: of each row only so many first tokens matter; None: all do. The others may be computed as well."""
    keys: Tensor | None = None
    """int64 [B, Q]: where new keys go, at the positions or behind them; None: at the positions. A token sees those
    before its position, and its own."""
    slots: Tensor | None = None
    """int64 [B]: the rows' slots, in memory that a graph reads; None: as `rows` says. For a `FusedRunner`."""
    guesses: int = 0
    """Where each row has several tokens, so many of the last may be none that were committed. For a draft that
    reads its target's states."""

    @property
    def written(self) -> Tensor:
        """int64 [B, Q]: where new keys go."""
        return self.positions if self.keys is None else self.keys


@dataclass(frozen=True)
class Computation:
    """By what a runner computes, for people and for metrics."""

    runner: Literal["native", "fused", "transformers"]
    instructions: str
    """Of the processor, as the native library names them; "torch" where torch chooses, "triton" beside it."""
    weights: str
    why_not_native: str | None = None

    def __str__(self) -> str:
        if self.why_not_native is None:
            return f"native {self.instructions}, {self.weights} weights"
        return f"{self.instructions}, {self.weights} weights ({self.why_not_native})"


class Runner(Protocol):
    """Computes logits and keeps the keys and values they need.

    Rewinding is only a smaller length on the caller's side: keys beyond it are masked and later
    overwritten, so a runner keeps no lengths at all.
    """

    @property
    def head(self) -> nn.Module: ...
    @property
    def computation(self) -> Computation: ...

    @property
    def stalls(self) -> int:
        """Waits for a thread of its own that was kept from its core."""
        ...

    @property
    def linears(self) -> Sequence[ServedLinear | NativeLinear]:
        """All linear layers but the head."""
        ...

    def forward(self, window: Window, token_ids: Tensor, keep: int) -> Tensor:
        """Logits [B, keep, N] of the last `keep` of token_ids [B, Q], a column for each token of the head.

        Of tokens that do not matter they may be any numbers.
        """
        ...

    def record_states(self, states: "TargetStates") -> None:
        """Have every forward leave there what the layers made of its tokens."""
        ...

    def move(self, source: int, destination: int, length: int) -> None:
        """Copy the first `length` positions of a slot over another's."""
        ...

    def move_keys(self, sources: Tensor, destinations: Tensor) -> None:
        """In each of the first B slots, copy what is at one of sources int64 [B] over destinations [B]."""
        ...

    def clear(self, slot: int) -> None:
        """Zero a slot's keys and values."""
        ...
