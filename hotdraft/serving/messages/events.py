"""What the engine tells those who listen: rounds, finished requests, swaps."""

import time
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from hotdraft.serving.messages.request import GenerationRequest, RequestStats

SwapReason = Literal["promotion", "rollback", "startup"]
CloseReason = Literal["headers", "body", "answer", "crowded", "full"]
"""Why a connection was ended. A deadline passed, of `headers`, of a `body`, or for a client to take its `answer`;
or the one that waited longest made room, as all were taken or unfinished bodies were too large (`crowded`), or none
waited and the new one was sent away (`full`)."""


class RoundStats(NamedTuple):
    k: int
    """Tokens proposed for the request with the most."""
    drafts: int
    """Requests that something was proposed for."""
    proposed_tokens: int
    accepted_tokens: int
    accepted_per_position: tuple[int, ...]
    guessed_tokens: int
    """Of the proposed ones those that no model drafted."""
    accepted_guesses: int
    new_tokens: int
    seconds: float
    """That the decoder took."""
    draft_version: int
    plain_seconds: float | None = None
    """That plain decoding of the same rows would have taken to give as many tokens, by the costs learnt of rounds
    here; None as long as these are unknown."""
    inter_token_seconds: tuple[float, ...] = ()
    """Time since the last round of each request that had one before."""
    alternatives: int = 0
    """Second choices of the draft that the target read beside the proposed tokens."""
    accepted_alternatives: int = 0


@dataclass(frozen=True)
class SwapEvent:
    version: int
    previous_version: int
    reason: str
    stall_seconds: float


class SwapClock:
    """Tells the requests that began after the last swap: no other version had a part in them.

    The version is compared too: over vLLM workers may draft with one before it is announced.
    """

    def __init__(self) -> None:
        self.swapped(0)

    def swapped(self, version: int) -> None:
        self._version = version
        self._swapped_at = time.perf_counter()

    def is_of_one_version(self, stats: RequestStats) -> bool:
        """Of a request that ends now."""
        began = time.perf_counter() - stats.total_seconds
        return stats.draft_version == self._version and began > self._swapped_at


class EngineListener(Protocol):
    """Hears of the engine's work, in the output thread, and must be quick. What it raises is counted and dropped.

    A round is told before the requests that finish in it, and both before the clients hear of them.
    """

    def on_round(self, stats: RoundStats) -> None: ...

    def on_finish(self, request: GenerationRequest, stats: RequestStats, finish_reason: str) -> None: ...

    def on_swap(self, event: SwapEvent) -> None: ...
