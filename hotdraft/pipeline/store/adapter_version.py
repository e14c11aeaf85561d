"""A version in the adapter registry, read from MLflow's tags and aliases."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from mlflow.entities.model_registry import ModelVersion

from hotdraft.pipeline.store.served import Served, served

CANDIDATE = "candidate"
CHAMPION = "champion"
RETIRED = "retired"
REJECTED = "rejected"
ROLLED_BACK = "rolled_back"
UNKNOWN = "unknown"
"""Of a version that somebody else made, in MLflow's own pages for one."""


@dataclass(frozen=True)
class AdapterVersion:
    version: int
    status: str
    """`candidate`, `champion`, `retired`, `rejected`, `rolled_back` or `unknown`."""
    aliases: list[str]
    run_id: str
    """The training run that made it."""
    created_at: float
    """Unix time, seconds."""
    tags: dict[str, str]
    served: Served | None
    """What it did in service, by all serving runs; None if it never finished a request."""
    pinned: bool
    """The champion that a person chose: it stays until a person moves or unpins it."""

    @classmethod
    def of(cls, found: ModelVersion, aliases: Mapping[str, int], pinned: bool) -> Self:
        """`aliases` are those of all versions; `pinned` is of the champion."""
        version = int(found.version)
        status = found.tags.get("status", UNKNOWN)
        if aliases.get(CHAMPION) == version:
            status = CHAMPION
        elif status == CHAMPION:  # the writer died between moving the alias and retiring the old one
            status = RETIRED
        return cls(
            version=version,
            status=status,
            aliases=sorted(name for name, holder in aliases.items() if holder == version),
            run_id=found.run_id or "",
            created_at=found.creation_timestamp / 1000,
            tags=dict(found.tags),
            served=served(found.tags),
            pinned=pinned and status == CHAMPION,
        )
