"""What an adapter version did in service: the counts that stand beside the gate's promise.

Each serving run keeps one tag of its own at a version, `served/<run id>`, and rewrites only that one: a server
that starts again goes on under a new run, several servers of one version do not meet, and their sum is the
version's result.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Self

from pydantic import Field, TypeAdapter, ValidationError

from hotdraft.pipeline.system.json_file import Seconds

TAG = "served/"
MAX_DOMAINS_IN_TAG = 24  # some databases hold 5000 characters of a tag

Count = Annotated[int, Field(ge=0, lt=2**53)]


@dataclass(frozen=True)
class DomainCounts:
    requests: Count = 0
    examined: Count = 0
    accepted: Count = 0

    def __add__(self, other: "DomainCounts") -> "DomainCounts":
        return DomainCounts(
            self.requests + other.requests, self.examined + other.examined, self.accepted + other.accepted
        )

    @property
    def acceptance_of_examined(self) -> float | None:
        """Accepted of the examined tokens: what the gate predicts."""
        return self.accepted / self.examined if self.examined else None


@dataclass(frozen=True)
class Served:
    """Counts of the requests that one version served from their first round to their last."""

    requests: Count = 0
    drafted: Count = 0
    examined: Count = 0
    """Drafted tokens up to and including the first rejected of each round."""
    accepted: Count = 0
    since: Seconds = 0.0
    """Unix time, seconds, of the first request's end."""
    until: Seconds = 0.0
    """Of the last one's."""
    by_domain: dict[str, DomainCounts] = field(default_factory=dict)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted of the drafted tokens; None if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def acceptance_of_examined(self) -> float | None:
        """Accepted of the examined tokens: what the gate predicts."""
        return self.accepted / self.examined if self.examined else None

    def __add__(self, other: "Served") -> "Served":
        if not (self.requests and other.requests):
            return self if self.requests else other
        names = [*self.by_domain, *(name for name in other.by_domain if name not in self.by_domain)]
        none = DomainCounts()
        return Served(
            self.requests + other.requests,
            self.drafted + other.drafted,
            self.examined + other.examined,
            self.accepted + other.accepted,
            min(self.since, other.since),
            max(self.until, other.until),
            {name: self.by_domain.get(name, none) + other.by_domain.get(name, none) for name in names},
        )

    def to_tag(self) -> str:
        """JSON, with the domains of most requests."""
        largest = sorted(self.by_domain.items(), key=lambda item: -item[1].requests)[:MAX_DOMAINS_IN_TAG]
        return json.dumps(asdict(replace(self, by_domain=dict(largest))), ensure_ascii=False)

    @classmethod
    def from_tag(cls, tag: str) -> Self:
        """Raises `ValidationError` for anything but what `to_tag` gives."""
        return TypeAdapter(cls).validate_json(tag)


def served_by_run(tags: Mapping[str, str]) -> dict[str, Served]:
    """What each serving run made of the version with these tags, the latest first.

    Tags are anybody's to write: one that holds no counts is passed over.
    """
    found = {}
    for key, value in tags.items():
        if key.startswith(TAG):
            with suppress(ValidationError):
                found[key.removeprefix(TAG)] = Served.from_tag(value)
    return dict(sorted(found.items(), key=lambda item: -item[1].until))


def served(tags: Mapping[str, str]) -> Served | None:
    """The sum over all serving runs; None if the version never finished a request."""
    by_run = served_by_run(tags)
    return sum(by_run.values(), Served()) if by_run else None
