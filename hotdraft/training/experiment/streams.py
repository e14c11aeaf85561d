"""Streams of requests for experiments: the same for every policy, another for every seed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hotdraft.pipeline.config.learning import ExperimentConfig
from hotdraft.pipeline.traffic.generators import arithmetic, text_to_sql
from hotdraft.pipeline.traffic.prompts import Prompt, read_traffic

BUILTIN_FIRST, BUILTIN_SECOND = 60, 300
"""Requests of the built-in stream: arithmetic, then text-to-SQL arrives as a shift."""


@dataclass(frozen=True)
class Stream:
    prompts: list[Prompt]
    probes: list[Prompt]
    """What is never learned from, to tell what was forgotten."""


def read_streams(
    settings: ExperimentConfig, traffic: Sequence[Path] | None, limit: int | None
) -> dict[int, Stream]:
    """The stream of each seed: the prompts of each file in turn, shuffled within it.

    Of each part at most `limit` prompts are played. Raises `TrafficError` for what is no traffic file or
    has too few prompts to keep `probes` of them apart.
    """
    return {seed: _stream(settings, traffic, limit, seed) for seed in settings.seeds}


def _stream(settings: ExperimentConfig, traffic: Sequence[Path] | None, limit: int | None, seed: int) -> Stream:
    stream = Stream([], [])
    for name, prompts in _parts(settings, traffic, seed):
        if len(prompts) <= settings.probes:
            raise ValueError(
                f"{name} has {len(prompts)} prompts, and experiment.probes keeps {settings.probes} of them apart"
            )
        random.Random(seed).shuffle(prompts)
        stream.probes.extend(prompts[: settings.probes])
        stream.prompts.extend(prompts[settings.probes :][:limit])
    return stream


def _parts(settings: ExperimentConfig, traffic: Sequence[Path] | None, seed: int) -> list[tuple[str, list[Prompt]]]:
    if traffic:
        return [(str(path), read_traffic(path)) for path in traffic]
    return [
        ("built-in arithmetic", arithmetic(BUILTIN_FIRST + settings.probes, seed)),
        ("built-in text-to-SQL", text_to_sql(BUILTIN_SECOND + settings.probes, seed)),
    ]
