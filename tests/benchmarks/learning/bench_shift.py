"""How soon a live server follows traffic that shifts, and what it forgets.

    python -m tests.benchmarks.learning.bench_shift --config configs/smollm2.yaml --out shift.json
    python -m tests.benchmarks.learning.bench_shift --config configs/smollm2.yaml --out recurring.json \\
        --phase arithmetic:40 --phase text_to_sql:150 --phase arithmetic:60 --phase text_to_sql:60

Plays built-in prompts at a server with its trainer beside it, seed by seed, and then asks every version that served
what it does on requests that nobody played. With `--ceiling` a long job on as many requests of the newest domain,
which nothing judges, says what could be gained at all.
"""

import argparse
import asyncio
import json
import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hotdraft.answering.experiment_answers import answers_of
from hotdraft.pipeline.config.settings import HotdraftConfig, load_config
from hotdraft.pipeline.processes.local_server import local_server
from hotdraft.pipeline.simulation.playback import Defaults, Outcome, Playback, play
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.pipeline.traffic.generators import BUILTIN
from hotdraft.pipeline.traffic.prompts import Prompt
from hotdraft.training.experiment.ceiling import UNJUDGED, ceiling
from hotdraft.training.experiment.played_draft import PlayedDraft
from hotdraft.training.experiment.streams import Stream

CEILING_SEED = 7
CEILING = {"max_steps": 1500, "batch_tokens": 512, "learning_rate": 1e-3}
Phase = tuple[str, int]


@dataclass(frozen=True)
class Shift:
    """What one play came to; acceptance is that of the draft alone, at `experiment.k`."""

    versions: dict[int, dict[str, float]]
    """By version and domain, on requests that were not played; 0 is the draft as it came."""
    served: list[tuple[str, int, int]]
    """Domain, version and tokens of each request, in the order of completion."""
    jobs: list[dict[str, Any]]
    failed: int
    tokens_per_second: float


def prompts_of(phases: Sequence[Phase], seed: int) -> tuple[list[Prompt], dict[str, list[Prompt]]]:
    """What is played, and what is not, by domain."""
    left, played = {}, []
    for name, _ in phases:
        total = sum(count for other, count in phases if other == name)
        left[name] = BUILTIN[name](total + arguments.probes, seed)
    probes = {name: prompts[: arguments.probes] for name, prompts in left.items()}
    rest = {name: iter(prompts[arguments.probes :]) for name, prompts in left.items()}
    for name, count in phases:
        played += [next(rest[name]) for _ in range(count)]
    return played, probes


def played(phases: Sequence[Phase], seed: int, folder: Path) -> Shift:
    prompts, probes = prompts_of(phases, seed)
    overrides = {"run_dir": folder, "distill": {"seed": seed}}
    config = load_config(arguments.config, {**overrides, "experiment": {"max_tokens": arguments.max_tokens}})
    folder.mkdir(parents=True)
    with local_server(arguments.config, folder / "server.log", overrides) as url:
        playback = asyncio.run(
            play(
                url,
                prompts,
                concurrency=4,
                defaults=Defaults(arguments.max_tokens),
                on_outcome=lambda _: None,
                request_rate=arguments.request_rate,
            )
        )
    return read(config, playback, [prompt for some in probes.values() for prompt in some])


def read(config: HotdraftConfig, playback: Playback, probes: list[Prompt]) -> Shift:
    registry = AdapterRegistry(config)
    samples = answers_of(config, arguments.answers, [Stream(probes, [])]).of(probes)
    draft = PlayedDraft(config, registry)
    good = [outcome for outcome in playback.outcomes if outcome.error is None]
    versions = {}
    for version in sorted({0, registry.champion(), *(outcome.draft_version for outcome in good)}):
        draft.take_up(version)
        versions[version] = draft.acceptance_by_domain(samples)
    tokens = sum(outcome.tokens for outcome in good)
    jobs = [{"version": one.version, "status": one.status, **one.tags} for one in reversed(registry.versions())]
    served = [_served(outcome) for outcome in good]
    failed = len(playback.outcomes) - len(good)
    return Shift(versions, served, jobs, failed, tokens / playback.wall_seconds)


def _served(outcome: Outcome) -> tuple[str, int, int]:
    return outcome.domain, outcome.draft_version, outcome.tokens


def figures(shift: Shift, phases: Sequence[Phase], most: dict[str, float] | None) -> dict[str, Any]:
    """Of the newest domain, its gain and when it was served; of the others, what was lost."""
    newest, before, last = phases[-1][0], shift.versions[0], shift.versions[max(shift.served[-1][1], 0)]
    of_newest = [version for domain, version, _ in shift.served if domain == newest]
    found = {
        "before": before[newest],
        "gain": last[newest] - before[newest],
        "lost": max((before[name] - last[name] for name in before if name != newest), default=0.0),
        "first_version": next((place for place, one in enumerate(of_newest) if one), len(of_newest)),
        "versions": len(shift.versions) - 1,
        "tokens_per_second": shift.tokens_per_second,
        "failed": shift.failed,
    }
    if most is not None:
        gain = most[newest] - before[newest]
        found |= {"ceiling_gain": gain, "share": found["gain"] / gain}
        for share in (0.25, 0.5, 0.75):
            enough = {v: p[newest] - before[newest] >= share * gain for v, p in shift.versions.items()}
            found[f"until_{share:g}"] = next((n for n, one in enumerate(of_newest) if enough[one]), None)
    if [name for name, _ in phases].count(newest) > 1:
        first = next(count for name, count in phases if name == newest)
        ended, began = shift.versions[of_newest[first - 1]], shift.versions[of_newest[first]]
        found["again"] = began[newest] / ended[newest]
    return found


def reached(phases: Sequence[Phase], scratch: Path) -> dict[str, float]:
    """By domain, what a long job on `arguments.ceiling` requests of the newest does on the first seed's probes."""
    newest = phases[-1][0]
    _, probes = prompts_of(phases, arguments.seeds[0])
    asked = [prompt for some in probes.values() for prompt in some]
    learned = [prompt for prompt in BUILTIN[newest](arguments.ceiling, CEILING_SEED) if prompt not in asked]
    told = {**UNJUDGED, "run_dir": scratch, "distill": {**UNJUDGED["distill"], **CEILING}}
    config = load_config(arguments.config, {**told, "experiment": {"max_tokens": arguments.max_tokens}})
    answers = answers_of(config, arguments.answers, [Stream(learned, asked)])
    return ceiling(config, answers.of(learned), answers.of(asked)).probes


def main() -> None:
    phases = [(name, int(count)) for name, count in (phase.split(":") for phase in arguments.phase)]
    result: dict[str, Any] = {"phases": phases, "config": str(arguments.config), "seeds": {}}
    with tempfile.TemporaryDirectory() as scratch:
        most = reached(phases, Path(scratch) / "ceiling") if arguments.ceiling else None
        result["ceiling"] = most
        for seed in arguments.seeds:
            began = time.monotonic()
            shift = played(phases, seed, Path(arguments.keep or scratch) / f"seed-{seed}")
            found = figures(shift, phases, most)
            told = {name: value if value is None else round(value, 3) for name, value in found.items()}
            print(f"seed {seed}, {time.monotonic() - began:.0f} s", told)
            result["seeds"][seed] = {"figures": found, **asdict(shift)}
            arguments.out.write_text(json.dumps(result) + "\n")
    every = [one["figures"] for one in result["seeds"].values()]
    for name in every[0]:
        values = [one[name] for one in every]
        if None in values:  # never in some run
            print(f"{name}: {values}")
            continue
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"{name}: {statistics.fmean(values):.3f} ± {spread:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/smollm2.yaml"))
    parser.add_argument("--phase", action="append", help="a built-in generator and how many requests: code:60")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--request-rate", type=float, default=math.inf, help="requests a second, at most")
    parser.add_argument("--probes", type=int, default=60, help="of each domain, that are not played")
    parser.add_argument("--ceiling", type=int, default=0, help="requests that a long job learns from")
    parser.add_argument(
        "--answers", type=Path, default=Path("runs/bench-shift-answers"), help="kept from run to run"
    )
    parser.add_argument("--keep", type=Path, help="folder to leave the servers' run directories in")
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    arguments = parser.parse_args()
    arguments.phase = arguments.phase or ["arithmetic:40", "text_to_sql:300"]
    main()
