"""The served curves as they are kept in memory, and from which what MLflow is told is made."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """What an interval with traffic, or the part of one before a swap, came to."""

    time: float
    """Its end, Unix time in seconds."""
    request: int
    """Requests finished since the server's start."""
    tokens_per_second: float
    draft_version: int
    domains: dict[str, float]
    """Acceptance rate by domain."""
    acceptance_rate: float | None = None
    """Accepted / drafted tokens; None if none was drafted."""
    mean_acceptance_length: float | None = None
    """1 + accepted / rounds."""
    speedup: float | None = None
    """Over k = 0: what plain decoding would have taken for the same tokens, by the measured costs of rounds, over
    what the rounds took; None if no costs were measured."""
    mean_k: float | None = None
    """Drafted tokens a request, over all rounds."""
    plain_share: float | None = None
    """Share of the rounds with k = 0."""

    def values(self) -> dict[str, float]:
        """By metric name, for MLflow."""
        values: dict[str, float | None] = {
            "requests": self.request,
            "draft_version": self.draft_version,
            "tokens_per_second": self.tokens_per_second,
            "acceptance_rate": self.acceptance_rate,
            "mean_acceptance_length": self.mean_acceptance_length,
            "speedup": self.speedup,
            "mean_k": self.mean_k,
            "plain_share": self.plain_share,
            **{f"acceptance_rate/{domain}": rate for domain, rate in self.domains.items()},
        }
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Swap:
    time: float
    request: int
    version: int
    reason: str


@dataclass(frozen=True)
class History:
    """The newest points and swaps, oldest first."""

    interval_seconds: float
    points: list[Point]
    swaps: list[Swap]
