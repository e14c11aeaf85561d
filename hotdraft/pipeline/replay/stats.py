"""What the replay buffer holds, in numbers."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class DraftedCounts:
    requests: int
    drafted: int
    """Draft tokens that the target examined: what follows a rejected one is not recorded."""
    accepted: int
    acceptance_rate: float | None
    """Accepted among drafted; None if nothing was drafted."""


@dataclass(frozen=True)
class ReplayStats:
    shards: int
    bytes: int
    requests: int
    output_tokens: int
    drafted: int
    rejected: int
    by_domain: dict[str, DraftedCounts]
    by_draft_version: dict[int, DraftedCounts]
    """By the version that drafted last."""
    oldest: float | None
    newest: float | None
    quarantined: tuple[str, ...] = ()
    """Names of files that were set aside."""


def drafted_counts(index: pa.Table, by: str) -> dict[Any, DraftedCounts]:
    """Sums over the rows of `index` for each value of its column `by`."""
    sums = index.group_by(by).aggregate([("drafted", "count"), ("drafted", "sum"), ("accepted", "sum")])
    return {
        row[by]: DraftedCounts(
            requests=row["drafted_count"],
            drafted=row["drafted_sum"],
            accepted=row["accepted_sum"],
            acceptance_rate=row["accepted_sum"] / row["drafted_sum"] if row["drafted_sum"] else None,
        )
        for row in sums.to_pylist()
    }
