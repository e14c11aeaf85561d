"""How far the draft of a small pair of another architecture follows a shift of traffic, with default settings.

    python -m tests.benchmarks.learning.bench_other_pairs --architecture gpt_neox --out gpt-neox.json

Trains the pair, plays the built-in shift under several seeds, and shows the figures of each and of all.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from hotdraft.commands.experiment import experiment
from hotdraft.training.experiment.report import figures
from tests.benchmarks.learning.other_pairs import ARCHITECTURES, train_pair

POLICY = "ours"


def play_shift(pair: tuple[str, str], folder: Path, seeds: Sequence[int]) -> dict[int, dict[str, Any]]:
    """A `StreamResult` as JSON for each seed. Only what names the pair and the experiment's size is set."""
    config = folder / "config.yaml"
    content = {
        "target": pair[0],
        "draft": pair[1],
        "device": "cpu",
        "run_dir": str(folder / "run"),
        "experiment": {"seeds": list(seeds), "max_tokens": 64, "probes": 20, "policies": {POLICY: {}}},
    }
    config.write_text(yaml.safe_dump(content))
    experiment(config=config, out=folder)
    results = folder / "results"
    return {seed: json.loads((results / f"{POLICY}-{seed}.json").read_text()) for seed in seeds}


def main(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        pair = (str(arguments.pair / "target"), str(arguments.pair / "draft")) if arguments.pair else None
        pair = pair or train_pair(folder / "pair", arguments.architecture)
        results = play_shift(pair, folder, arguments.seeds)
    found = {seed: figures(result) | {"each_job": result["jobs"]} for seed, result in results.items()}
    for seed, of_seed in found.items():
        print(f"seed {seed}", {name: round(of_seed[name], 3) for name in ("first", "last", "gain", "lost")})
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the figures")
    parser.add_argument("--architecture", choices=ARCHITECTURES, default="gpt_neox")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pair", type=Path, help="folder of a pair that was trained before")
    main(parser.parse_args())
