"""The default policy of the loop on a shift of traffic that a second pair sees, by `hotdraft experiment`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from pipeline.commands.experiment import experiment

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
