"""Mixed clients for hours with a swap a minute, and what grows meanwhile: memory, threads, files, shards.

python -m tests.benchmarks.operating.bench_soak --config my-small-pair.yaml --minutes 120 --out soak.json

The swaps go round adapters that change the draft a little. `grown` compares the medians of the last
quarter with those of the second: the first fills pools, caches and retention.
"""

import argparse
import asyncio
import json
import threading
from collections import Counter
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import psutil

from hotdraft.pipeline.config.settings import HotdraftConfig, load_config
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.store.connection import create_run, experiment_id, open_client
from hotdraft.pipeline.store.registry import AdapterRegistry
from tests.benchmarks.serving.bench_load import served, usage, waiting
from tests.integration.adapters import write_adapter
from tests.scenarios.load import load

SWAP_SECONDS = 60.0
SAMPLE_SECONDS = 30.0
ADAPTERS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    arguments = parser.parse_args()
    config = load_config(arguments.config)
    with TemporaryDirectory() as folder, served(arguments.config, Path(folder) / "server.log") as (url, process):
        versions = _versions(config, Path(folder))
        ending = threading.Event()
        samples: list[dict[str, float]] = []
        swaps: Counter[int] = Counter()
        helpers = [
            threading.Thread(target=_swap, args=(config, versions, swaps, ending)),
            threading.Thread(target=_watch, args=(config, process, samples, ending)),
        ]
        for helper in helpers:
            helper.start()
        crowd = {"clients": arguments.clients, "seconds": 60 * arguments.minutes, "mixed": True}
        outcome = asyncio.run(load(url, config.served_model_name, **crowd))
        ending.set()
        for helper in helpers:
            helper.join()
        report = {
            "clients": arguments.clients,
            "minutes": arguments.minutes,
            "outcome": dict(outcome.counts),
            "promotions": sum(swaps.values()),
            "grown": _grown(samples),
            "left": waiting(url),
            "samples": samples,
        }
    print(json.dumps({**report, "samples": len(samples)}, indent=2))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(report, indent=2) + "\n")


def _versions(config: HotdraftConfig, folder: Path) -> list[int]:
    assert config.draft is not None
    client, registry = open_client(config), AdapterRegistry(config)
    experiment = experiment_id(client, config, config.tracking.training_experiment)
    found = []
    for seed in range(ADAPTERS):
        adapter = write_adapter(folder / f"adapter-{seed}", config.draft, seed=seed, scale=0.01)
        run = create_run(client, experiment, f"soak-{seed}", "soak")
        found.append(registry.publish(adapter, run_id=run, tags={}))
    return found


def _swap(config: HotdraftConfig, versions: list[int], swaps: Counter[int], ending: threading.Event) -> None:
    registry = AdapterRegistry(config)
    while not ending.wait(SWAP_SECONDS):
        version = versions[swaps.total() % len(versions)]
        registry.promote(version, reason="soak")
        swaps[version] += 1


def _watch(
    config: HotdraftConfig, process: psutil.Process, samples: list[dict[str, float]], ending: threading.Event
) -> None:
    buffer = ReplayBuffer(config.replay_url)
    while not ending.wait(SAMPLE_SECONDS):
        sizes = buffer.size()
        samples.append({**usage(process), "shards": sizes.shards, "replay_mb": round(sizes.bytes / 1e6, 2)})


def _grown(samples: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    quarter = len(samples) // 4
    second, last = samples[quarter : 2 * quarter], samples[-quarter:]
    return {
        name: {part: median(sample[name] for sample in these) for part, these in (("from", second), ("to", last))}
        for name in samples[0]
    }


if __name__ == "__main__":
    main()
