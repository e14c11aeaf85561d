"""Real jobs on poisoned traffic, and what their adapters are worth on clean traffic that no job has seen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.adapter_folder import AdapterBase, load_adapter
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.experiment.play import play
from hotdraft.training.judging.served_draft import ServedDraft, load_draft
from hotdraft.training.online.context import JobError
from hotdraft.training.online.job import run_job
from hotdraft.training.scoring.evaluate import by_request
from tests.scenarios.poison import (
    Poison,
    clean,
    nan_logprobs,
    poisoned,
    shuffled_positions,
    swapped_answers,
    swapped_targets,
    wrong_domain,
)

DRAFTED = 3
"""Tokens a round."""


@dataclass(frozen=True)
class Case:
    poison: Poison = clean
    everywhere: bool = False
    """What the gate judges by is poisoned as well."""
    wrong_domain: bool = False
    learning_rate: float | None = None


POISONS: Mapping[str, Case] = MappingProxyType(
    {
        "answers of other requests": Case(swapped_answers),
        "answers of other requests, everywhere": Case(swapped_answers, everywhere=True),
        "targets of other requests": Case(swapped_targets),
        "targets of other requests, everywhere": Case(swapped_targets, everywhere=True),
        "targets of other positions": Case(shuffled_positions),
        "targets of other positions, everywhere": Case(shuffled_positions, everywhere=True),
        "NaN": Case(nan_logprobs),
        "NaN, everywhere": Case(nan_logprobs, everywhere=True),
        "wrong domain": Case(wrong_domain=True),
        "learning rate 0.3": Case(learning_rate=0.3),
        "learning rate 10": Case(learning_rate=10.0),
    }
)


@dataclass(frozen=True)
class Outcome:
    promoted: bool
    reason: str
    left_out: int
    """Recorded requests that the job did not believe."""
    champion: float
    """Expected acceptance on the clean probes before the job."""
    candidate: float | None
    """Of the adapter that was published; None if none was."""

    @property
    def bad(self) -> bool:
        """An adapter reached service that is worse than what it took the place of, or is no adapter at all."""
        return self.promoted and (self.candidate is None or not self.candidate >= self.champion)


def run_case(
    config: HotdraftConfig, case: Case, samples: Sequence[ReplaySample], probes: Sequence[ReplaySample]
) -> Outcome:
    """One job on `samples`, poisoned, from the draft without an adapter. `config.run_dir` must be new."""
    distill = config.distill
    if case.learning_rate is not None:
        distill = distill.model_copy(update={"learning_rate": case.learning_rate})
    config = config.model_copy(update={"distill": distill})
    fraction = config.replay.held_out_fraction
    assert config.draft is not None
    draft = load_draft(config.draft, config)
    batch_tokens = config.distill.batch_tokens
    champion = float(by_request(draft.chances(None, probes, batch_tokens)).mean())
    if case.wrong_domain:
        samples = wrong_domain(samples, samples[0].domain, held_out_fraction=fraction)
    served = _served(draft, config, samples)
    buffer = ReplayBuffer.of(config)
    buffer.append(
        poisoned(served, case.poison, everywhere=case.everywhere, held_out_fraction=fraction, seed=distill.seed)
    )
    registry = AdapterRegistry(config)
    try:
        result = run_job(config, buffer=buffer, registry=registry)
    except JobError as error:
        return Outcome(registry.champion() != 0, str(error), 0, champion, None)
    candidate = None
    if result.version is not None:
        base = AdapterBase.of(draft.base, draft.fingerprint)
        adapter = load_adapter(registry.download(result.version), base)
        candidate = float(by_request(draft.chances(adapter, probes, batch_tokens)).mean())
    left_out = int(result.metrics["requests_left_out"])
    return Outcome(registry.champion() != 0, result.verdict.reason, left_out, champion, candidate)


def _served(draft: ServedDraft, config: HotdraftConfig, samples: Sequence[ReplaySample]) -> list[ReplaySample]:
    """`samples` with what the draft proposed and the target accepted."""
    generator = np.random.default_rng(config.distill.seed)
    chances = draft.chances(None, samples, config.distill.batch_tokens)
    return [
        play(sample, chance, k=DRAFTED, draft_version=0, generator=generator).sample
        for sample, chance in zip(samples, chances, strict=True)
    ]
