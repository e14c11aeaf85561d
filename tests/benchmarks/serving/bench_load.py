"""Streaming clients by the hundred against a server of a small pair: what they are told and what they leave.

python -m tests.benchmarks.serving.bench_load --config my-small-pair.yaml --clients 200 --seconds 60
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from hotdraft.pipeline.config.settings import load_config
from hotdraft.pipeline.processes.local_server import wait_until_healthy
from hotdraft.pipeline.system.ports import free_port
from tests.scenarios.load import Outcome, load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    arguments = parser.parse_args()
    model = load_config(arguments.config).served_model_name
    with TemporaryDirectory() as folder, served(arguments.config, Path(folder) / "server.log") as (url, process):
        crowd = {"model": model, "max_tokens": arguments.max_tokens}
        # the first crowd fills pools, caches and threads that stay, so what the second adds is a leak
        asyncio.run(load(url, clients=arguments.clients, seconds=arguments.seconds / 4, **crowd))
        before = usage(process)
        outcome = asyncio.run(load(url, clients=arguments.clients, seconds=arguments.seconds, **crowd))
        report = {
            "clients": arguments.clients,
            "seconds": arguments.seconds,
            "outcome": dict(outcome.counts),
            **figures(outcome, arguments.seconds),
            "before": before,
            "after": usage(process),
            "left": waiting(url),
        }
    print(json.dumps(report, indent=2))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(report, indent=2) + "\n")


@contextmanager
def served(config: Path, log: Path) -> Iterator[tuple[str, psutil.Process]]:
    port = free_port()
    command = [sys.executable, "-m", "hotdraft", "serve", "--config", str(config), "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=os.environ)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_healthy(url, process, log)
        yield url, psutil.Process(process.pid)
    finally:
        process.terminate()
        print("exit code", process.wait(90))


def usage(process: psutil.Process) -> dict[str, float]:
    return {
        "resident_mb": round(process.memory_info().rss / 1e6, 1),
        "threads": process.num_threads(),
        "open_files": process.num_fds(),
    }


def waiting(url: str) -> dict[str, float]:
    """Requests that the server still has, by its own metrics, once the crowd is gone."""
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics").text)
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    return {sample.name: sample.value for family in families for sample in family.samples if sample.name in names}


def figures(outcome: Outcome, seconds: float) -> dict[str, float]:
    percentiles = statistics.quantiles(outcome.first_tokens, n=100)
    return {
        "tokens_per_second": round(outcome.completion_tokens / seconds, 1),
        "first_token_seconds_p50": round(percentiles[49], 3),
        "first_token_seconds_p99": round(percentiles[98], 3),
    }


if __name__ == "__main__":
    main()
