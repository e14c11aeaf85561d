"""From a judged candidate to a decided version: what the registry and the run are told, once.

The verdict is on disk before the store hears of it. A job whose store goes away, or that is killed here,
is published by the next one, without training again.
"""

import hashlib
import json
import math
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.replay.rows import ReplayRows
from hotdraft.pipeline.store.adapter_version import CANDIDATE, CHAMPION
from hotdraft.pipeline.store.connection import log_params, open_client
from hotdraft.pipeline.store.domains import name_part
from hotdraft.pipeline.store.errors import ChampionPinnedError
from hotdraft.pipeline.store.lineage import GATE_BY_DOMAIN, Lineage
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.pipeline.system.json_file import read_json, write_json
from hotdraft.pipeline.system.local_time import MINUTES, local_time
from hotdraft.training.batches.mixture import served
from hotdraft.training.batches.replay_data import ReplayDataModule
from hotdraft.training.judging.gate import Verdict

FILE = "judged.json"
CONTEXT = "mlflow.data.context"  # the tag that MLflow's pages show beside a data set


@dataclass(frozen=True)
class Judged:
    """What a job came to, before anything of it is published."""

    verdict: Verdict
    metrics: dict[str, float]
    tags: dict[str, str]
    """Of the version."""
    folder: Path | None
    """The adapter; None if there is nothing fit to publish."""
    at: float
    """Unix time, seconds."""
    champion: int | None = None
    """The version that it was judged against; None if it was against none."""

    def save(self, job_folder: Path) -> None:
        folder = None if self.folder is None else self.folder.name
        write_json(job_folder / FILE, {**asdict(self), "folder": folder})

    @classmethod
    def load(cls, job_folder: Path) -> Self:
        """The verdict that the job in `job_folder` came to. Raises as `read_json` does."""
        found = read_json(job_folder / FILE, cls)
        return replace(found, folder=found.folder and job_folder / found.folder)


@dataclass(frozen=True)
class Published:
    judged: Judged
    """With the verdict in the words that were told."""
    version: int | None
    """None if there was nothing fit to publish."""
    promoted: bool
    """Whether it serves now: not where it passed the gate while the champion is pinned."""


def publish(judged: Judged, run_id: str, config: HotdraftConfig, registry: AdapterRegistry) -> Published:
    """Publish and decide the version, tell the run and end it.

    An accepted version stays a candidate while the champion is pinned. Whatever was done before is not done again.
    Raises `ChampionMovedError` if another version serves than the one that an accepted one was judged against.
    """
    client, verdict, version, promoted = open_client(config), judged.verdict, None, False
    if judged.folder is not None:
        found = registry.published_by(run_id)
        version = found.version if found else registry.publish(judged.folder, run_id=run_id, tags=judged.tags)
        if found is not None and found.status == CANDIDATE:
            registry.tell(version, judged.tags)  # of a verdict that may be a new one
        if found is None or found.status == CANDIDATE:  # a person may have decided otherwise since
            if verdict.accepted:
                verdict, promoted = _promoted(verdict, version, judged.champion, registry)
            else:
                registry.reject(version, reason=verdict.reason)
        else:
            promoted = found.status == CHAMPION
    at = int(1000 * judged.at)
    metrics = [Metric(name, value, at, 0) for name, value in judged.metrics.items() if math.isfinite(value)]
    client.log_batch(run_id, metrics=metrics)
    client.set_tag(run_id, "verdict", "accepted" if verdict.accepted else "rejected")
    client.set_tag(run_id, "reason", verdict.reason)
    client.set_tag(run_id, "draft_version", "none" if version is None else str(version))
    if version is None:
        client.set_tag(run_id, "mlflow.note.content", f"No version: {verdict.reason}")
    else:
        client.update_run(run_id, name=f"v{version}, {local_time(judged.at, MINUTES)}")
        Lineage(client, config).describe(version)
    client.set_terminated(run_id)
    return Published(replace(judged, verdict=verdict), version, promoted)


def _promoted(
    verdict: Verdict, version: int, champion: int | None, registry: AdapterRegistry
) -> tuple[Verdict, bool]:
    """Promote `version`, and whether that was done; the verdict says so where a pin forbids it."""
    try:
        registry.promote(version, reason=verdict.reason, instead_of=champion)
    except ChampionPinnedError as pinned:
        verdict = replace(verdict, reason=f"passed the gate: {verdict.reason}; not promoted, as {pinned}")
        registry.tell(version, {"reason": verdict.reason})
        return verdict, False
    return verdict, True


def log_inputs(client: MlflowClient, run_id: str, config: HotdraftConfig, data: ReplayDataModule) -> None:
    """Tell the run what it learns from and how. Saying it again changes nothing."""
    log_params(
        client,
        run_id,
        config.distill.recipe(),  # a run's parameters never change
        target=config.target,
        draft=config.draft,
        dtype=config.dtype,
    )
    rows = {"training": data.train_rows, "gate": data.held_out_rows}
    inputs = [
        DatasetInput(_dataset(f"replay-{context}", config.replay_url, some), [InputTag(CONTEXT, context)])
        for context, some in rows.items()
    ]
    client.log_inputs(run_id, datasets=inputs)


def window_tags(rows: ReplayRows) -> dict[str, str]:
    """Tags of a version for the requests that its job could draw from, oldest first, but the mixture's."""
    rows = served(rows)
    times = rows.column("created_at")
    domains = Counter(name_part(domain) for domain in rows["domain"])
    return {
        "train_requests": str(len(rows)),
        "train_tokens": str(rows.column("output_tokens").sum()),
        "train_first_request": rows.oldest,
        "train_last_request": rows.newest,
        "train_first_at": f"{times[0]:.3f}",
        "train_last_at": f"{times[-1]:.3f}",
        "train_domains": json.dumps(dict(domains.most_common(24)), ensure_ascii=False),
    }


def gain_metrics(verdict: Verdict) -> dict[str, float]:
    """What the verdict rests on, as far as it was measured, by the names it has in MLflow."""
    by_domain = {f"gain/{name_part(domain)}": gain for domain, gain in verdict.by_domain.items()}
    figures = {name: getattr(verdict, name) for name in ("gain", "gain_low", "gain_high", "loss_high")}
    return {name: value for name, value in {**figures, **by_domain}.items() if not math.isnan(value)}


def gate_tags(names: np.ndarray, champion: np.ndarray, candidate: np.ndarray) -> dict[str, str]:
    """Tag of a version for what the gate measured by domain, each a `name_part`; scores [R] are those of each
    held-out request."""
    table: dict[str, Any] = {}
    for name, requests in Counter(names.tolist()).most_common(24):
        of_domain = names == name
        table[name] = {
            "requests": requests,
            "champion": round(float(champion[of_domain].mean()), 6),
            "candidate": round(float(candidate[of_domain].mean()), 6),
        }
    return {GATE_BY_DOMAIN: json.dumps(table, ensure_ascii=False)}


def _dataset(name: str, url: str, rows: ReplayRows) -> Dataset:
    digest = hashlib.sha256("\n".join(rows["request_id"]).encode()).hexdigest()[:16]
    profile = {"num_rows": len(rows), "domains": dict(Counter(rows["domain"]).most_common(24))}
    kind = url.split("://", 1)[0] if "://" in url else "local"
    return Dataset(name, digest, kind, json.dumps({"uri": url}), profile=json.dumps(profile))
