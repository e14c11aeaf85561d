"""What the engine tells those who listen: rounds, finished requests, swaps."""

from dataclasses import dataclass
from typing import Protocol

from serving.request import GenerationRequest, RequestStats


@dataclass(frozen=True)
class RoundStats:
    k: int
    requests: int
    drafted_tokens: int
    accepted_tokens: int
    accepted_per_position: tuple[int, ...]
    new_tokens: int
    seconds: float
    draft_version: int
    inter_token_seconds: tuple[float, ...] = ()
    """Time since the last round of each request that had one before."""


@dataclass(frozen=True)
class SwapEvent:
    version: int
    previous_version: int
    reason: str
    stall_seconds: float


class EngineListener(Protocol):
    """Hears of the engine's work, in the engine's thread: it must be quick and must not raise.

    A round is told before the requests that finish in it, and both before the clients hear of them.
    """

    def on_round(self, stats: RoundStats) -> None: ...

    def on_finish(self, request: GenerationRequest, stats: RequestStats, finish_reason: str) -> None: ...

    def on_swap(self, event: SwapEvent) -> None: ...
