"""Poisoned jobs on a real pair: how many adapters that are worse than the champion does the gate let through?

    python -m tests.benchmarks.learning.bench_poison --config configs/experiment-shift.yaml \\
        --answers OUT/answers/replay

OUT is where `hotdraft experiment --config … --out OUT` left its answers. Every job begins with the draft without
an adapter and has the gate of the configuration; jobs on clean requests come first and do not count.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from hotdraft.pipeline.config.settings import load_config
from hotdraft.pipeline.replay.buffer import ReplayBuffer, sample_from_row
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.training.fit.progress_bar import quiet_trainer
from tests.scenarios.poisoned_jobs import POISONS, Case, Outcome, run_case

CLEAN = "none"


def main(arguments: argparse.Namespace) -> None:
    quiet_trainer()
    console = Console()
    results = []
    for name, seed in planned(arguments.poison or list(POISONS), arguments.jobs, arguments.clean):
        recorded, probes = traffic(arguments, seed)
        with tempfile.TemporaryDirectory() as scratch:
            distill = {
                "seed": seed,
                "max_steps": arguments.steps,
                "max_seconds": None,
                "threads": arguments.threads,
            }
            config = load_config(arguments.config, {"run_dir": f"{scratch}/run", "distill": distill})
            outcome = run_case(config, POISONS.get(name, Case()), recorded, probes)
        results.append((name, seed, outcome))
        console.print(f"{name}, seed {seed}: {outcome.reason}", highlight=False, soft_wrap=True)
        if arguments.out:
            arguments.out.write_text(json.dumps([_json(*result) for result in results], indent=1) + "\n")
    console.print(table(results))


def planned(names: list[str], jobs: int, clean: int) -> Iterator[tuple[str, int]]:
    """Names and seeds: the poisons in turn, each time under another seed."""
    yield from ((CLEAN, seed) for seed in range(clean))
    yield from ((names[index % len(names)], index // len(names)) for index in range(jobs))


def traffic(arguments: argparse.Namespace, seed: int) -> tuple[list[ReplaySample], list[ReplaySample]]:
    """Of every domain requests to record, mixed, and others to probe with."""
    rows = ReplayBuffer(str(arguments.answers)).load().with_format("numpy")
    generator = np.random.default_rng(seed)
    samples = [sample_from_row(rows[int(index)]) for index in generator.permutation(len(rows))]
    recorded: list[ReplaySample] = []
    probes: list[ReplaySample] = []
    for domain in sorted({str(sample.domain) for sample in samples}):
        own = [sample for sample in samples if sample.domain == domain]
        probes += own[: arguments.probes]
        recorded += own[arguments.probes : arguments.probes + arguments.requests]
    return [recorded[index] for index in generator.permutation(len(recorded))], probes


def table(results: list[tuple[str, int, Outcome]]) -> Table:
    poisoned = [outcome for name, _, outcome in results if name != CLEAN]
    bad = sum(outcome.bad for outcome in poisoned)
    table = Table(title=f"{len(poisoned)} poisoned jobs, bad adapters through the gate: {bad}")
    for column in ("poison", "seed", "left out", "champion", "candidate", "verdict", "reason", "bad"):
        table.add_column(column)
    for name, seed, outcome in results:
        candidate = "-" if outcome.candidate is None else f"{outcome.candidate:.3f}"
        table.add_row(
            name, str(seed), str(outcome.left_out), f"{outcome.champion:.3f}", candidate,
            "promoted" if outcome.promoted else "refused", outcome.reason, "BAD" if outcome.bad else "",
        )  # fmt: skip
    return table


def _json(name: str, seed: int, outcome: Outcome) -> dict[str, Any]:
    return {"poison": name, "seed": seed, **asdict(outcome), "bad": outcome.bad}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--answers", type=Path, required=True, help="folder of a replay buffer")
    parser.add_argument("--out", type=Path, help="JSON file")
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument(
        "--clean", type=int, default=1, help="jobs on clean requests, to see that they are promoted"
    )
    parser.add_argument("--poison", action="append", choices=list(POISONS), help="only this one; repeatable")
    parser.add_argument("--steps", type=int, default=20, help="of a job")
    parser.add_argument("--requests", type=int, default=120, help="recorded of each domain")
    parser.add_argument("--probes", type=int, default=30, help="of each domain, that no job has seen")
    parser.add_argument("--threads", type=int, default=1)
    main(parser.parse_args())
