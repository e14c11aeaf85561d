"""Streams of requests for experiments: the same for every policy, another for every seed."""

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from hotdraft.pipeline.config.learning import ExperimentConfig, PhaseConfig
from hotdraft.pipeline.traffic.generators import BUILTIN
from hotdraft.pipeline.traffic.prompts import Prompt, read_traffic

OTHER_SEED = 1_000_003
"""From a stream's seed to that of what else its ceilings learn from."""


@dataclass(frozen=True)
class Stream:
    prompts: list[Prompt]
    probes: list[Prompt]
    """What is never learned from, to tell what was forgotten."""
    more: list[Prompt] = field(default_factory=list)
    """Like `prompts`, for ceilings to learn from as well."""


Streams = Mapping[int, Stream]
"""One for each seed."""


def read_streams(
    settings: ExperimentConfig, traffic: Sequence[Path] | None, limit: int | None
) -> dict[str, Streams]:
    """The streams of the settings by name, or one of all prompts of each file of `traffic` in turn.

    Of each phase or file at most `limit` prompts are played, no prompt twice. Raises `TrafficError` for what is no
    traffic file, and ValueError for a source that has too few prompts to keep `probes` of them apart.
    """
    if traffic:
        known: set[str] = set()
        sizes = {str(path): len(_prompts_in(path, known)) - settings.probes for path in traffic}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(_too_few(name, size + settings.probes, settings.probes))
        phases = [PhaseConfig(requests=size, of={name: 1.0}) for name, size in sizes.items()]
        named = {"traffic": phases}
    else:
        named = settings.streams
    return {
        name: {seed: _stream(phases, settings, limit, seed) for seed in settings.seeds}
        for name, phases in named.items()
    }


def _stream(phases: Sequence[PhaseConfig], settings: ExperimentConfig, limit: int | None, seed: int) -> Stream:
    chance, probes = random.Random(seed), settings.probes
    asked: list[str] = []
    for phase in phases:
        count = phase.requests if limit is None else min(phase.requests, limit)
        asked += chance.choices(list(phase.of), list(phase.of.values()), k=count)
    kept: list[Prompt] = []
    left, known = {}, set[str]()
    for source, count in Counter(asked).items():
        prompts = BUILTIN[source](count + probes, seed) if source in BUILTIN else _prompts_in(source, known)
        if len(prompts) < count + probes:
            raise ValueError(_too_few(source, len(prompts), probes))
        random.Random(seed).shuffle(prompts)
        kept += prompts[:probes]
        left[source] = iter(prompts[probes:])
    played = [next(left[source]) for source in asked]
    if unprobed := sorted({prompt.domain for prompt in played} - {prompt.domain for prompt in kept}):
        raise ValueError(
            f"of {', '.join(unprobed)} no prompt is among the {probes} of each source that are kept apart: raise "
            "experiment.probes, or give each domain a file of its own"
        )
    more = [prompt for source in left for prompt in _more(source, left[source], settings.ceiling_requests, seed)]
    return Stream(played, kept, [prompt for prompt in more if prompt not in kept])


def _more(source: str, left: Iterator[Prompt], count: int, seed: int) -> Iterable[Prompt]:
    """Up to `count` prompts beside those of the stream; of a file what is `left`."""
    return BUILTIN[source](count, seed + OTHER_SEED) if source in BUILTIN and count else islice(left, count)


def _prompts_in(file: str | Path, known: set[str]) -> list[Prompt]:
    """Those not `known` yet, each once: one that came again would be learned from though it is kept apart."""
    found = []
    for prompt in read_traffic(file):
        if (asked := json.dumps(prompt.messages)) not in known:
            known.add(asked)
            found.append(prompt)
    return found


def _too_few(source: str, prompts: int, probes: int) -> str:
    return f"{source} has {prompts} prompts of its own, and experiment.probes keeps {probes} of them apart"
