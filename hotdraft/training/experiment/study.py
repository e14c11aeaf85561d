"""One policy of the loop on one stream of requests: what it serves, when it learns, and what it forgets.

All is the real thing but serving: requests are recorded in a replay buffer, the trigger decides, jobs train,
are judged and published. Answers are the same for every policy, as speculation does not change them.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.trigger import DistillTrigger
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.batches.mixture import held_out_in_mixture
from hotdraft.training.experiment.played_draft import PlayedDraft
from hotdraft.training.fit.resume import StopSignal
from hotdraft.training.judging.resident import Resident
from hotdraft.training.online.context import JobGaveWayError
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


@dataclass(frozen=True)
class Swapped:
    """A version that serves from after `request` requests on."""

    request: int
    version: int
    probes: dict[str, float]
    """Its acceptance rate by domain, on requests that are not in the stream."""


@dataclass
class StreamResult:
    served: list[ServedRequest] = field(default_factory=list)
    jobs: list[JobDone] = field(default_factory=list)
    swaps: list[Swapped] = field(default_factory=list)
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
        while (decision := stream.trigger.decide()).due:
            began = time.monotonic()
            try:
                job = run_job(
                    config, buffer=stream.buffer, registry=stream.registry, stop=_Meanwhile(stream),
                    burst=decision.burst, resident=resident,
                    urgent=None if decision.burst else stream.trigger.urgent,
                )  # fmt: skip
            except JobGaveWayError as way:
                spent = time.monotonic() - began
                result.jobs.append(JobDone(len(result.served), None, False, str(way), 0.0, spent))
                continue
            refused = refused + 1 if job.verdict.is_hopeless else 0
            stream.trigger.reset(decision, new_draft=job.promoted, refused_in_a_row=refused)
            result.jobs.append(
                JobDone(
                    len(result.served), job.version, job.verdict.accepted, job.verdict.reason,
                    job.metrics.get("steps", 0.0), job.seconds,
                )
            )  # fmt: skip
            if stream.draft.follow_champion():
                probed = stream.draft.acceptance_by_domain(probes)
                result.swaps.append(Swapped(len(result.served), stream.draft.version, probed))
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
        self.trigger = DistillTrigger(config, self.buffer, held_out=len(held_out_in_mixture(config)))
        self.draft = PlayedDraft(config, self.registry)
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
