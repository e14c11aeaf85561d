"""What a client asks of the engine and what it hears back."""

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "cancelled", "error"]
DEFAULT_DOMAIN = "default"
"""Of traffic that nobody tagged."""


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn. Raises ValueError naming the field and what it may be."""

    max_tokens: int = 16
    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0 keeps every token."""
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    """Equal seeds give equal text, in whatever batch; None draws a seed."""
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        checks = {
            "max_tokens": (self.max_tokens >= 1, "at least 1"),
            "temperature": (0 <= self.temperature <= 100, "between 0 and 100"),
            "top_k": (self.top_k >= 0, "0 (off) or more"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "min_p": (0 <= self.min_p < 1, "at least 0 and below 1"),
            "stop": (all(self.stop), "non-empty strings"),
        }
        for field, (ok, allowed) in checks.items():
            if not ok:
                raise ValueError(f"{field} must be {allowed}, not {getattr(self, field)!r}")


@dataclass(frozen=True)
class GenerationRequest:
    request_id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    domain: str = DEFAULT_DOMAIN
    record: bool = True


@dataclass(frozen=True)
class RequestStats:
    prompt_tokens: int
    completion_tokens: int
    rounds: int
    drafted_tokens: int
    """k for every round, those after a rejection included."""
    examined_tokens: int
    """Drafted tokens up to and including the first rejected of each round."""
    accepted_tokens: int
    draft_version: int
    queued_seconds: float
    time_to_first_token: float | None
    total_seconds: float


@dataclass(frozen=True)
class OutputDelta:
    """New text of a request. The last delta carries a `finish_reason`."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    stats: RequestStats
