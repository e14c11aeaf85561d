"""One policy of the loop on one stream of requests: what it serves, when it learns, and what it forgets.

All is the real thing but serving: requests are recorded in a replay buffer, the trigger decides, jobs train,
are judged and published. Answers are the same for every policy, as speculation does not change them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.adapters import AdapterBase, LoadedAdapter, load_adapter
from pipeline.config import HotdraftConfig
from pipeline.loop import DistillTrigger
from pipeline.records import ReplaySample
from pipeline.registry import AdapterRegistry
from pipeline.replay import ReplayBuffer
from training.job import run_job
from training.served_draft import ServedDraft, load_draft
from training.stream import Played, play

BLOCK = 8
"""Requests between two looks at the trigger."""


@dataclass(frozen=True)
class Served:
    """What speculation did for one request."""

    domain: str
    rounds: int
    drafted: int
    accepted: int
    tokens: int
    draft_version: int


@dataclass(frozen=True)
class Job:
    """One distillation job, which came after `request` requests."""

    request: int
    version: int | None
    accepted: bool
    reason: str
    steps: float
    seconds: float


@dataclass
class StreamResult:
    served: list[Served] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    probes_before: dict[str, float] = field(default_factory=dict)
    """Acceptance rate by domain, of the draft that the stream began with, on requests that are not in it."""
    probes_after: dict[str, float] = field(default_factory=dict)
    """Likewise of the draft that it ended with."""


def study(
    config: HotdraftConfig,
    samples: Sequence[ReplaySample],
    probes: Sequence[ReplaySample],
    *,
    on_served: Callable[[int], None],
) -> StreamResult:
    """Play `samples` in order under the policy that `config` is; `probes` are never learned from.

    `on_served` hears how many requests were played. `config.run_dir` must be new. Raises what `run_job` raises.
    """
    buffer = ReplayBuffer.of(config)
    registry = AdapterRegistry(config)
    trigger = DistillTrigger(config, buffer)
    served = _Draft(config, registry)
    result = StreamResult(probes_before=served.acceptance_by_domain(probes))
    for start in range(0, len(samples), BLOCK):
        block = served.play(samples[start : start + BLOCK])
        buffer.append([played.sample for played in block])
        result.served += [
            Served(p.sample.domain, p.rounds, p.drafted, p.accepted, len(p.sample.output_ids), served.version)
            for p in block
        ]
        on_served(len(block))
        if trigger.decide().due:
            job = run_job(config, buffer=buffer, registry=registry)
            trigger.reset(new_draft=job.verdict.accepted)
            result.jobs.append(
                Job(
                    len(result.served), job.version, job.verdict.accepted, job.verdict.reason,
                    job.metrics.get("steps", 0.0), job.seconds,
                )
            )  # fmt: skip
            served.follow_champion()
    result.probes_after = served.acceptance_by_domain(probes)
    return result


class _Draft:
    """The draft as it is served: with the champion's adapter."""

    def __init__(self, config: HotdraftConfig, registry: AdapterRegistry) -> None:
        assert config.draft is not None
        self.version = 0
        self._config = config
        self._registry = registry
        self._draft: ServedDraft = load_draft(config.draft, config)
        self._adapter: LoadedAdapter | None = None
        self._generator = np.random.default_rng(config.distill.seed)

    def follow_champion(self) -> None:
        """Swap, if there is a new champion."""
        version = self._registry.champion()
        if version == self.version:
            return
        base = AdapterBase.of(self._draft.base, self._draft.fingerprint)
        folder = self._registry.download(version)
        self._adapter = load_adapter(folder, base, self._config.distill.lora.rank)
        self.version = version

    def play(self, samples: Sequence[ReplaySample]) -> list[Played]:
        chances = self._draft.chances(self._adapter, samples, self._config.distill.batch_tokens)
        return [
            play(sample, chance, k=self._config.experiment.k, draft_version=self.version, generator=self._generator)
            for sample, chance in zip(samples, chances, strict=True)
        ]

    def acceptance_by_domain(self, samples: Sequence[ReplaySample]) -> dict[str, float]:
        accepted: dict[str, int] = {}
        drafted: dict[str, int] = {}
        for played in self.play(samples):
            domain = played.sample.domain
            accepted[domain] = accepted.get(domain, 0) + played.accepted
            drafted[domain] = drafted.get(domain, 0) + played.drafted
        return {domain: accepted[domain] / count for domain, count in drafted.items() if count}
