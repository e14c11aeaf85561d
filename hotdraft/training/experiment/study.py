"""One policy of the loop on one stream of requests: what it serves, when it learns, and what it forgets.

All is the real thing but serving: requests are recorded in a replay buffer, the trigger decides, jobs train,
are judged and published. Answers are the same for every policy, as speculation does not change them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.trigger import DistillTrigger
from hotdraft.pipeline.models.adapter_folder import AdapterBase, LoadedAdapter, load_adapter
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.batches.mixture import held_out_in_mixture
from hotdraft.training.experiment.play import Played, play
from hotdraft.training.fit.resume import StopSignal
from hotdraft.training.judging.resident import Resident
from hotdraft.training.judging.served_draft import ServedDraft, load_draft
from hotdraft.training.online.job import run_job

BLOCK = 8
"""Requests between two looks at the trigger."""


@dataclass(frozen=True)
class ServedRequest:
    """What speculation did for one request."""

    domain: str
    rounds: int
    drafted: int
    accepted: int
    tokens: int
    draft_version: int


@dataclass(frozen=True)
class JobDone:
    """One distillation job, which came after `request` requests."""

    request: int
    version: int | None
    accepted: bool
    reason: str
    steps: float
    seconds: float


@dataclass
class StreamResult:
    served: list[ServedRequest] = field(default_factory=list)
    jobs: list[JobDone] = field(default_factory=list)
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
    stream, resident, refused = _Stream(config, samples, on_served), Resident(), 0
    result = StreamResult(probes_before=stream.draft.acceptance_by_domain(probes), served=stream.served)
    while stream.serve():
        if (decision := stream.trigger.decide()).due:
            job = run_job(
                config, buffer=stream.buffer, registry=stream.registry, stop=_Meanwhile(stream),
                max_steps=decision.max_steps, resident=resident,
            )  # fmt: skip
            refused = refused + 1 if job.verdict.is_hopeless else 0
            stream.trigger.reset(new_draft=job.verdict.accepted, refused_in_a_row=refused)
            result.jobs.append(
                JobDone(
                    len(result.served), job.version, job.verdict.accepted, job.verdict.reason,
                    job.metrics.get("steps", 0.0), job.seconds,
                )
            )  # fmt: skip
            stream.draft.follow_champion()
    result.probes_after = stream.draft.acceptance_by_domain(probes)
    return result


class _Stream:
    """Requests that are still to come, and the stores that what was served of them goes to."""

    def __init__(
        self, config: HotdraftConfig, samples: Sequence[ReplaySample], on_served: Callable[[int], None]
    ) -> None:
        self.config = config
        self.buffer = ReplayBuffer.of(config)
        self.registry = AdapterRegistry(config)
        self.trigger = DistillTrigger(config, self.buffer, held_out=held_out_in_mixture(config))
        self.draft = _Draft(config, self.registry)
        self.served: list[ServedRequest] = []
        self._samples = samples
        self._on_served = on_served

    def serve(self) -> bool:
        """Serve a block of requests; says whether there was one."""
        block = self.draft.play(self._samples[len(self.served) : len(self.served) + BLOCK])
        if not block:
            return False
        self.buffer.append([played.sample for played in block])
        self.served += [
            ServedRequest(
                p.sample.domain, p.rounds, p.drafted, p.accepted, len(p.sample.output_ids), self.draft.version
            )
            for p in block
        ]
        self._on_served(len(block))
        return True


class _Meanwhile(StopSignal):
    """What a job asks at each step, and while it waits, whether to stop: no, but requests were served meanwhile."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self._due = 0.0

    def is_set(self) -> bool:
        self._due += self._stream.config.experiment.requests_per_step
        while self._due >= BLOCK and self._stream.serve():
            self._due -= BLOCK
        return False


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
        self._adapter = load_adapter(folder, base)
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
