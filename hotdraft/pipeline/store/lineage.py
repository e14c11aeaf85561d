"""Lineage in MLflow, linked both ways: serving run ⇄ adapter version ⇄ training run.

Tags are the record. Descriptions of versions and notes of runs are written from them, for people: MLflow's
pages show them as Markdown, with links that lead from each of the three to the other two.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated
from urllib.parse import quote

from mlflow import MlflowClient
from mlflow.entities import LifecycleStage, Metric
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from pydantic import Field, NonNegativeInt, TypeAdapter, ValidationError

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.store.connection import ABSENT
from hotdraft.pipeline.store.domains import name_part
from hotdraft.pipeline.store.history import Swap
from hotdraft.pipeline.store.served import TAG, DomainCounts, Served, served, served_by_run

GATE_BY_DOMAIN = "gate_by_domain"
"""Tag of a version: JSON, domain → held-out `requests`, expected acceptance of `champion` and `candidate`."""
Rate = Annotated[float, Field(allow_inf_nan=False)]
MAX_SWAPS, MAX_RUNS, MAX_DOMAINS = 20, 8, 12  # a description has at most 5000 characters, a note 8000


@dataclass(frozen=True)
class JudgedDomain:
    """What the gate measured on the held-out requests of one domain."""

    requests: NonNegativeInt = 0
    champion: Rate | None = None
    candidate: Rate | None = None


def gate_by_domain(tags: Mapping[str, str]) -> dict[str, JudgedDomain]:
    """What the gate measured, by domain; empty if the tag is missing or somebody broke it."""
    try:
        return TypeAdapter(dict[str, JudgedDomain]).validate_json(tags.get(GATE_BY_DOMAIN, "{}"))
    except ValidationError:
        return {}


def by_domain(tags: Mapping[str, str]) -> Iterator[tuple[str, JudgedDomain | None, DomainCounts | None]]:
    """What the gate measured and what was served of each domain that these tags of a version tell of."""
    gate, counts = gate_by_domain(tags), (served(tags) or Served()).by_domain
    for domain in dict.fromkeys([*gate, *counts]):
        yield domain, gate.get(domain), counts.get(domain)


class Lineage:
    """Writes the lineage of `config.tracking.registered_model`. What is unknown or deleted is passed over."""

    def __init__(self, client: MlflowClient, config: HotdraftConfig) -> None:
        self._client = client
        self._model = config.tracking.registered_model
        self._links: dict[str, str] = {}

    def record_served(self, version: int, run_id: str, counts: Served) -> None:
        """Keep what the serving run `run_id` made of `version` so far, in place of what it told before."""
        found = self._version(version)
        if found is None:
            return
        total = served({**found.tags, TAG + run_id: counts.to_tag()})
        assert total is not None
        figures = {
            "served_requests": float(total.requests),
            "served_acceptance_rate": total.acceptance_rate,
            "served_acceptance_of_examined": total.acceptance_of_examined,
        }
        known = {name: value for name, value in figures.items() if value is not None}
        self._client.set_model_version_tag(self._model, str(version), TAG + run_id, counts.to_tag())
        for name, value in known.items():
            self._client.set_model_version_tag(self._model, str(version), name, f"{value:.4g}")
        if found.run_id and self._link(found.run_id):
            at = int(total.until * 1000)
            points = [Metric(name, value, at, total.requests) for name, value in known.items()]
            self._client.log_batch(found.run_id, metrics=points)
        self.describe(version)

    def describe(self, version: int) -> None:
        """Write the description of `version`, and the note of the run that trained it, from the version's tags."""
        found = self._version(version)
        if found is None:
            return
        text = "\n\n".join([*self._trained(found), *self._gate(found.tags), *self._served(found.tags)])
        made_by = self._link(found.run_id or "")
        origin = f"Trained by {made_by}. " if made_by else ""
        self._client.update_model_version(self._model, str(version), description=f"{origin}{text}")
        if made_by:
            made = f"Made {self._version_link(version)} of {self._model}. "
            self._client.set_tag(found.run_id or "", "mlflow.note.content", f"{made}{text}")

    def describe_serving(self, run_id: str, swaps: Sequence[Swap], counts: Mapping[int, Served]) -> None:
        """Write the note of a serving run: its swaps, and what each version did in it."""
        history = [
            [
                str(swap.request),
                self._version_link(swap.version),
                re.sub(r"[|\s]+", " ", swap.reason)[:80],
                self._maker(swap.version),
            ]
            for swap in swaps[-MAX_SWAPS:]
        ]
        results = [
            [self._version_link(version), str(result.requests), _number(result.acceptance_rate)]
            for version, result in list(counts.items())[-MAX_SWAPS:]
        ]
        text = [
            f"Swaps:\n\n{_table(['at request', 'draft version', 'why', 'trained by'], history)}",
            f"What was served:\n\n{_table(['draft version', 'requests', 'acceptance rate'], results)}",
        ]
        self._client.set_tag(run_id, "mlflow.note.content", "\n\n".join(text))
        if swaps:
            self._client.set_tag(run_id, "hotdraft.draft_version", str(swaps[-1].version))

    def _trained(self, version: ModelVersion) -> list[str]:
        tags = version.tags
        try:
            parent = int(tags.get("parent", 0))
            first_at, last_at = (_time(float(tags[f"train_{end}_at"])) for end in ("first", "last"))
            first, last = (name_part(tags[f"train_{end}_request"]) for end in ("first", "last"))
            requests, tokens = tags["train_requests"], tags["train_tokens"]
        except (KeyError, ValueError, OverflowError, OSError):  # made elsewhere: without them, or with other values
            return []
        return [
            f"It goes on from {self._version_link(parent)} and learned from {requests} requests ({tokens} tokens) "
            f"recorded from {first_at} to {last_at}, `{first}` to `{last}`."
        ]

    def _gate(self, tags: Mapping[str, str]) -> list[str]:
        if not gate_by_domain(tags):
            return []
        rows = []
        for domain, gate, result in islice(by_domain(tags), MAX_DOMAINS):
            judged, counts = gate or JudgedDomain(), result or DomainCounts()
            promise = [_number(judged.champion), _number(judged.candidate)]
            kept = [str(counts.requests), _number(counts.acceptance_of_examined)]
            rows.append([domain, str(judged.requests), *promise, *kept])
        explained = "Accepted share of the examined tokens, on the gate's held-out requests and as served:"
        header = ["domain", "held out", "champion", "this version", "requests served", "as served"]
        return [explained, _table(header, rows)]

    def _served(self, tags: Mapping[str, str]) -> list[str]:
        rows = [
            [
                self._link(run_id) or run_id,
                str(counts.requests),
                _number(counts.acceptance_rate),
                _time(counts.since),
                _time(counts.until),
            ]
            for run_id, counts in list(served_by_run(tags).items())[:MAX_RUNS]
        ]
        if not rows:
            return ["It has not served yet."]
        return ["It served in:", _table(["run", "requests", "acceptance rate", "from", "until"], rows)]

    def _maker(self, version: int) -> str:
        if not version:
            return "no adapter"
        found = self._version(version)
        return (self._link(found.run_id or "") if found else "") or "an unknown run"

    def _version(self, version: int) -> ModelVersion | None:
        try:
            return self._client.get_model_version(self._model, str(version))
        except MlflowException as error:
            if error.error_code in ABSENT:
                return None
            raise

    def _version_link(self, version: int) -> str:
        if not version:
            return "the draft as it is"
        return f"[version {version}](#/models/{quote(self._model, safe='')}/versions/{version})"

    def _link(self, run_id: str) -> str:
        """A link to a run by its name; empty if there is no such run, or if it was deleted."""
        if not run_id:
            return ""
        if run_id not in self._links:
            try:
                info = self._client.get_run(run_id).info
            except MlflowException as error:
                if error.error_code in ABSENT:
                    return ""
                raise
            link = f"[{info.run_name}](#/experiments/{info.experiment_id}/runs/{run_id})"
            self._links[run_id] = link if info.lifecycle_stage == LifecycleStage.ACTIVE else ""
        return self._links[run_id]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown; MLflow's pages set columns without any space between them."""
    lines = [[f"{name}&nbsp;&nbsp;" for name in header], ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
