"""How often the gate errs: the tables of docs/learning.md.

python -m tests.benchmarks.learning.bench_gate --lineages 200
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tests.scenarios.gate_simulation import Lineage, Setting, lineages


def main(count: int) -> None:
    print(
        "older domains, prompts of theirs | lineages of 20 jobs in which a version came to serve that lost 0.05 or"
    )
    print("more against their best [95 % lose no more than], by what every candidate loses | good ones refused")
    for domains, older in ((1, 96), (4, 96), (8, 96), (16, 96), (32, 96), (8, 48), (8, 24), (8, 8)):
        base = Setting(domains=domains, older=older, gain=0.2)
        cells = [_lost(lineages(replace(base, loss=loss), count)) for loss in (0.01, 0.02, 0.05, 0.1)]
        good = _accepted(Setting(domains=domains, older=older, blends=1), 4 * count)
        print(f"| {domains} | {older} | {' | '.join(cells)} | {1 - good:.0%} |", flush=True)
    print("older domains of which one loses, its prompts | such candidates accepted, by its loss")
    for domains in (4, 8, 16, 32):
        base = Setting(domains=domains, losing=1, gain=0.2)
        cells = [f"{_accepted(replace(base, loss=loss), 4 * count):.0%}" for loss in (0.05, 0.1, 0.2, 0.3)]
        print(f"| {domains} | {96 // domains} | {' | '.join(cells)} |", flush=True)
    print("today's prompts, candidates of a job | lineages that accept one of no gain | accepted, by gain")
    for today, blends in ((5, 1), (5, 2), (10, 1), (10, 2), (10, 4), (20, 2), (48, 1), (48, 2), (48, 4), (96, 2)):
        cells = list(_by_gain(Setting(today=today, blends=blends), count))
        print(f"| {today} | {blends} | {' | '.join(cells)} |", flush=True)


def _by_gain(setting: Setting, count: int) -> Iterator[str]:
    nothing = lineages(replace(setting, gain=0.0, older=24), 2 * count)
    yield f"{np.mean([found.accepted > 0 for found in nothing]):.1%}"
    for gain in (0.05, 0.1, 0.2):
        yield f"{_accepted(replace(setting, gain=gain, older=24), 4 * count):.0%}"


def _lost(found: list[Lineage]) -> str:
    lost = np.array([lineage.lost for lineage in found])
    return f"{(lost >= 0.05 - 1e-9).mean():.1%} [{np.quantile(lost, 0.95):.2f}]"


def _accepted(setting: Setting, count: int) -> float:
    """Share of candidates, each the first of its lineage."""
    return float(np.mean([found.accepted for found in lineages(setting, count, jobs=1)]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lineages", type=int, default=200)
    main(parser.parse_args().lineages)
