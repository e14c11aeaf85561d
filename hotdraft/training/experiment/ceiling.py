"""What a draft could reach at all on a stream: taught all of it by one long job, which nothing judges."""

from collections.abc import Sequence
from dataclasses import dataclass

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.experiment.played_draft import PlayedDraft
from hotdraft.training.online.context import JobError
from hotdraft.training.online.job import run_job

EVERYTHING = 10**9
UNJUDGED = {
    "distill": {
        "blends": [1.0],
        "older_fraction": 0.0,
        "window_requests": EVERYTHING,
        "mix_requests": EVERYTHING,
        "max_seconds": None,
    },
    "gate": {"min_requests": 1, "min_prompts": 1, "wait_seconds": 0.0, "min_gain": -1.0, "max_domain_loss": 1.0},
}
"""What `ceiling` is to be configured with, beside the steps it takes."""


@dataclass(frozen=True)
class Reached:
    probes: dict[str, float]
    """Acceptance rate by domain, on requests that are not in the stream."""


def ceiling(config: HotdraftConfig, samples: Sequence[ReplaySample], probes: Sequence[ReplaySample]) -> Reached:
    """What a job on all of `samples` reaches. `config.run_dir` must be new.

    Raises what `run_job` raises, and `JobError` for a job of which nothing came that could be served.
    """
    buffer, registry = ReplayBuffer.of(config), AdapterRegistry(config)
    draft = PlayedDraft(config, registry)
    buffer.append([played.sample for played in draft.play(samples)])
    result = run_job(config, buffer=buffer, registry=registry)
    if not result.promoted:
        raise JobError(f"a ceiling's job came to nothing: {result.verdict.reason}")
    draft.follow_champion()
    return Reached(draft.acceptance_by_domain(probes))
