"""What a job beside the server costs those it serves: tokens/s and time per output token, with and without one.

    python -m tests.benchmarks.serving.bench_training_cost --config configs/demo.yaml --turns 3 --out cost.json

Each turn serves the same prompts twice, once while a job trains for as long as it takes, once without a trainer's
job, in changing order. The trainer has the threads and the niceness of the configuration.
"""

import argparse
import asyncio
import json
import os
import re
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from hotdraft.pipeline.processes.local_server import local_server
from hotdraft.pipeline.simulation.playback import Defaults, play
from hotdraft.pipeline.traffic.generators import arithmetic

WARM_REQUESTS, REQUESTS = 32, 48
NEVER = 1_000_000
JOB_STARTS_WITHIN = 120.0


def measured(config: Path, folder: Path, *, train: bool) -> dict[str, float]:
    """Figures of `REQUESTS` requests, after others that the job learns from."""
    overrides: dict[str, Any] = {
        "run_dir": folder,
        "replay": {"held_out_fraction": 0.4},
        "gate": {"min_requests": 4},
        "distill": {
            "max_steps": NEVER,
            "max_seconds": 3600.0,
            "trigger": {"min_new_requests": 8 if train else NEVER, "min_new_rejected": 1, "drift": None},
        },
    }
    prompts = arithmetic(WARM_REQUESTS + REQUESTS, seed=0)
    folder.mkdir()
    with local_server(config, folder / "server.log", overrides) as url:
        played(url, prompts[:WARM_REQUESTS])
        if train:
            wait_for_job(folder / "trainer.log")
        before = token_times(url)
        playback = played(url, prompts[WARM_REQUESTS:])
        seconds, requests = (after - earlier for after, earlier in zip(token_times(url), before, strict=True))
    tokens = sum(outcome.tokens for outcome in playback.outcomes)
    return {
        "tokens_per_second": tokens / playback.wall_seconds,
        "seconds_per_output_token": seconds / requests,
    }


def played(url: str, prompts: list) -> Any:
    return asyncio.run(play(url, prompts, concurrency=4, defaults=Defaults(64), on_outcome=lambda _: None))


def token_times(url: str) -> tuple[float, float]:
    """Sum and number of the requests' mean times between two tokens."""
    text = httpx.get(f"{url}/metrics").text
    found = [
        re.search(rf"^vllm:request_time_per_output_token_seconds_{part}\S* (\S+)$", text, re.M)
        for part in ("sum", "count")
    ]
    assert all(found)
    total, count = (float(match[1]) for match in found if match)
    return total, count


def wait_for_job(log: Path) -> None:
    deadline = time.monotonic() + JOB_STARTS_WITHIN
    while "distilling" not in (log.read_text() if log.is_file() else ""):
        if time.monotonic() > deadline:
            raise SystemExit(f"no job began within {JOB_STARTS_WITHIN:.0f} s, see {log}")
        time.sleep(1)
    time.sleep(10)  # from the word to the first step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/demo.yaml"))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    turns = []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(options.turns):
            found = {}
            for train in (turn % 2 == 0, turn % 2 != 0):
                name = "training" if train else "idle"
                found[name] = measured(options.config, Path(folder) / f"{turn}-{name}", train=train)
            turns.append(found)
            print(json.dumps(found), flush=True)
    summary = {}
    for key in ("tokens_per_second", "seconds_per_output_token"):
        ratios = [turn["training"][key] / turn["idle"][key] for turn in turns]
        summary[key] = {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}
        print(f"{key} while a job trains, over without: {summary[key]}")
    if options.out:
        options.out.write_text(
            json.dumps({"cores": os.cpu_count(), "ratios": summary, "turns": turns}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
