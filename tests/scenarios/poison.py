"""What may go wrong with recorded requests: clean ones in, poisoned ones out."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from hotdraft.pipeline.replay.buffer import is_held_out
from hotdraft.pipeline.replay.sample import ReplaySample

Poison = Callable[[Sequence[ReplaySample], np.random.Generator], list[ReplaySample]]

NAN_SHARE = 0.3
"""Of the requests that get NaN, and of the positions in each of them."""


def clean(samples: Sequence[ReplaySample], generator: np.random.Generator) -> list[ReplaySample]:
    return list(samples)


def swapped_answers(samples: Sequence[ReplaySample], generator: np.random.Generator) -> list[ReplaySample]:
    """Each prompt has the answer of another, with that one's distributions: true in themselves."""
    return [
        replace(
            sample,
            output_ids=other.output_ids,
            target_top_ids=other.target_top_ids,
            target_top_logprobs=other.target_top_logprobs,
            target_tail_logprob=other.target_tail_logprob,
            drafted_ids=other.drafted_ids,
            accepted=other.accepted,
            draft_versions=other.draft_versions,
        )
        for sample, other in zip(samples, _others(samples, generator), strict=True)
    ]


def swapped_targets(samples: Sequence[ReplaySample], generator: np.random.Generator) -> list[ReplaySample]:
    """Each answer has the distributions of another, both cut to the shorter."""
    swapped = []
    for sample, other in zip(samples, _others(samples, generator), strict=True):
        count = min(len(sample.output_ids), len(other.output_ids))
        swapped.append(
            replace(
                sample,
                output_ids=sample.output_ids[:count],
                target_top_ids=other.target_top_ids[:count],
                target_top_logprobs=other.target_top_logprobs[:count],
                target_tail_logprob=other.target_tail_logprob[:count],
                drafted_ids=sample.drafted_ids[:count],
                accepted=sample.accepted[:count],
                draft_versions=sample.draft_versions[:count],
            )
        )
    return swapped


def shuffled_positions(samples: Sequence[ReplaySample], generator: np.random.Generator) -> list[ReplaySample]:
    """The distributions of each answer are those of its other positions."""
    shuffled = []
    for sample in samples:
        order = generator.permutation(len(sample.output_ids))
        shuffled.append(
            replace(
                sample,
                target_top_ids=sample.target_top_ids[order],
                target_top_logprobs=sample.target_top_logprobs[order],
                target_tail_logprob=sample.target_tail_logprob[order],
            )
        )
    return shuffled


def nan_logprobs(samples: Sequence[ReplaySample], generator: np.random.Generator) -> list[ReplaySample]:
    """In some requests some positions have no log-probs."""
    spoilt = []
    for sample in samples:
        logprobs = sample.target_top_logprobs.copy()
        if generator.random() < NAN_SHARE:
            logprobs[generator.random(len(logprobs)) < NAN_SHARE] = np.nan
        spoilt.append(replace(sample, target_top_logprobs=logprobs))
    return spoilt


def poisoned(
    samples: Sequence[ReplaySample], poison: Poison, *, everywhere: bool, held_out_fraction: float, seed: int
) -> list[ReplaySample]:
    """`samples` in their order, those that jobs train on poisoned; the gate's too if `everywhere`."""
    generator = np.random.default_rng(seed)
    gates = [sample for sample in samples if is_held_out(sample.prompt_ids, held_out_fraction)]
    others = [sample for sample in samples if not is_held_out(sample.prompt_ids, held_out_fraction)]
    changed = poison(others, generator) + (poison(gates, generator) if everywhere else gates)
    by_id = {sample.request_id: sample for sample in changed}
    return [by_id[sample.request_id] for sample in samples]


def wrong_domain(samples: Sequence[ReplaySample], domain: str, *, held_out_fraction: float) -> list[ReplaySample]:
    """What jobs train on is of `domain`, and what the gate judges by is of all others."""
    return [
        sample
        for sample in samples
        if is_held_out(sample.prompt_ids, held_out_fraction) == (sample.domain != domain)
    ]


def _others(samples: Sequence[ReplaySample], generator: np.random.Generator) -> list[ReplaySample]:
    """For each sample another; none twice."""
    order = generator.permutation(len(samples))
    other = np.empty_like(order)
    other[order] = np.roll(order, 1)
    return [samples[index] for index in other]
