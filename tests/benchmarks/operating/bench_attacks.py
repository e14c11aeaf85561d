"""What an attack does to another client's requests, and what it leaves in memory, with a tiny pair.

python -m tests.benchmarks.operating.bench_attacks --out tests/benchmarks/results/attacks.json
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import psutil
import yaml

from tests.integration.processes import MODEL, Server
from tests.models import disturbed, save, tiny_llama
from tests.scenarios.attacks import ATTACKS, others, p99

PATIENCE_SECONDS = 60.0
"""What a request that failed or was not answered counts as; the patience of `others`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100, help="of the other client, without and with an attack")
    parser.add_argument("--files", type=int, default=256, help="that the server may open")
    parser.add_argument("--settle", type=float, default=5.0, help="seconds after an attack, before memory is read")
    parser.add_argument("--server", default="{}", help="JSON of the configuration's section `server`")
    parser.add_argument("--attacks", nargs="*", default=list(ATTACKS), choices=ATTACKS)
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    arguments = parser.parse_args()
    report = {}
    for name in arguments.attacks:  # each on a server of its own, so that none is blamed for another
        with TemporaryDirectory() as folder:
            config = write_config(Path(folder), json.loads(arguments.server))
            server = Server(config, Path(folder) / "server.log", files=arguments.files)
            try:
                report[name] = figures(server, name, arguments.requests, arguments.settle)
            finally:
                server.kill()
        print(name, json.dumps(report[name]), flush=True)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(report, indent=2) + "\n")


def write_config(folder: Path, server: dict[str, object]) -> Path:
    target = tiny_llama(layers=2, seed=1)
    config = {
        "target": save(target, folder / "target"),
        "draft": save(disturbed(target), folder / "draft"),
        "dtype": "float32",
        "device": "cpu",
        "run_dir": str(folder / "run"),
        "server": {"served_model_name": MODEL, **server},
        "engine": {"k": 3, "num_slots": 8, "max_model_len": 256, "threads": 1},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def figures(server: Server, attack: str, requests: int, settle: float) -> dict[str, object]:
    process = psutil.Process(server.process.pid)
    measured(server, 20)  # what is loaded at first use stays
    without = measured(server, requests)
    before, lines = process.memory_info().rss, server.log.read_text().count("\n")
    with ATTACKS[attack](server) as statuses:
        under = measured(server, requests)
        peak = process.memory_info().rss
    time.sleep(settle)
    return {
        "p50_ms": [round(1000 * statistics.median(seconds), 1) for seconds in (without, under)],
        "p99_ms": [round(1000 * p99(seconds), 1) for seconds in (without, under)],
        "p99_ratio": round(p99(under) / p99(without), 2),
        "unanswered": sum(seconds == PATIENCE_SECONDS for seconds in under),
        "attacker_was_told": sorted(set(statuses or ())),
        "resident_mb": [round(size / 1e6, 1) for size in (before, peak, process.memory_info().rss)],
        "log_lines": server.log.read_text().count("\n") - lines,
    }


def measured(server: Server, requests: int) -> list[float]:
    """Seconds of each; one that was not answered ends it."""
    seconds: list[float] = []
    for _ in range(requests):
        try:
            seconds += others(server, 1)
        except (httpx.HTTPError, AssertionError):
            return [*seconds, PATIENCE_SECONDS]
    return seconds


if __name__ == "__main__":
    main()
