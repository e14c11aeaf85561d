"""What a large replay buffer costs: the trigger's start, a job's set-up, appends, a first start on old shards.

    python -m tests.benchmarks.operating.bench_buffer --requests 1000000 --old-shards 10000 --out result.json

Requests are synthetic and short (8 tokens), in as many shards and row groups as merging leaves requests of 25 kB in
(`--shard-requests`, `--group-rows`). Each figure is that of a process of its own:
seconds of wall time, and of the processor, which a busy machine does not lengthen as much.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.replay import shard_writer
from hotdraft.pipeline.replay.folder import ShardFolder, shard_stem
from hotdraft.pipeline.replay.index import INDEX
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.pipeline.replay.schema import SCHEMA
from hotdraft.pipeline.replay.shard import Origin
from hotdraft.pipeline.replay.shard_writer import written

TOKENS, TOP, VOCABULARY = 8, 2, 1000
DOMAINS = [f"domain-{number}" for number in range(12)]
COMMITTED_TOGETHER = 16


def table(first: int, count: int) -> tuple[pa.Table, pa.Table]:
    """Rows with their index, made in columns."""
    generator = np.random.default_rng(first)
    tokens = generator.integers(1, VOCABULARY, (count, TOKENS)).astype(np.int32)
    accepted = generator.random((count, TOKENS)) < 0.6
    probs = np.tile(np.log([0.6, 0.3]).astype(np.float16), (count, TOKENS))

    def lists(values: np.ndarray) -> pa.Array:
        offsets = np.arange(0, values.size + 1, values.shape[1], dtype=np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values.reshape(-1)))

    top = np.stack([tokens, (tokens + 1) % VOCABULARY], 2).reshape(count, -1)
    rows = pa.table(
        {
            "request_id": [f"chatcmpl-{first + index:032x}" for index in range(count)],
            "created_at": 1.7e9 + first + np.arange(count),
            "domain": pa.array(np.array(DOMAINS)[generator.integers(0, len(DOMAINS), count)]),
            "temperature": np.ones(count, np.float32),
            "prompt_ids": lists(generator.integers(1, VOCABULARY, (count, TOKENS)).astype(np.int32)),
            "output_ids": lists(tokens),
            "target_top_ids": lists(top),
            "target_top_logprobs": lists(probs),
            "target_tail_logprob": lists(np.full((count, TOKENS), np.log(0.1), np.float32)),
            "drafted_ids": lists(tokens),
            "accepted": lists(accepted),
            "draft_versions": lists(np.ones((count, TOKENS), np.int32)),
            "top_p": np.ones(count, np.float32),
            "top_k": np.zeros(count, np.int32),
            "min_p": np.zeros(count, np.float32),
        }
    ).cast(SCHEMA)
    index = pa.table(
        {
            "request_id": rows["request_id"],
            "created_at": rows["created_at"],
            "domain": rows["domain"],
            "prompt_hash": generator.integers(0, 2**64, count, np.uint64, endpoint=False),
            "prompt_tokens": np.full(count, TOKENS, np.int32),
            "output_tokens": np.full(count, TOKENS, np.int32),
            "drafted": np.full(count, TOKENS, np.int32),
            "accepted": accepted.sum(1).astype(np.int32),
            "missed": (~accepted).sum(1).astype(np.int32),
            "draft_version": np.ones(count, np.int32),
        }
    ).cast(INDEX)
    return rows, index


def make(config: HotdraftConfig, requests: int, shard_requests: int, group_rows: int) -> None:
    """`requests` in merged shards of `shard_requests`."""
    folder = ShardFolder(config.replay_url)
    shard_writer.GROUP_ROWS = group_rows
    for first in range(0, requests, shard_requests):
        count = min(shard_requests, requests - first)
        part = table(first, count)
        origins = [
            Origin(
                f"{shard_stem(1.7e9 + start)}.{start:08x}.parquet", min(COMMITTED_TOGETHER, first + count - start)
            )
            for start in range(first, first + count, COMMITTED_TOGETHER)
        ]
        folder.write(
            shard_stem(1.7e9 + first), lambda file, p=part, o=origins: written(file, [p], o), ".merged.parquet"
        )


def make_old(config: HotdraftConfig, shards: int) -> None:
    """Small shards as versions without an index wrote them."""
    Path(config.replay_url).mkdir(parents=True, exist_ok=True)
    for number in range(shards):
        rows, _ = table(COMMITTED_TOGETHER * number, COMMITTED_TOGETHER)
        name = f"{shard_stem(1.7e9 + number)}-{uuid.uuid4().hex[:8]}.parquet"
        pq.write_table(rows, Path(config.replay_url) / name, compression="zstd")


def sample(number: int) -> ReplaySample:
    tokens = np.arange(1, TOKENS + 1, dtype=np.int32) + number % 50
    return ReplaySample(
        request_id=f"new-{number}", created_at=time.time(), domain="new", temperature=1.0, prompt_ids=tokens,
        output_ids=tokens, target_top_ids=np.stack([tokens, tokens + 1], 1),
        target_top_logprobs=np.tile(np.log([0.6, 0.3]).astype(np.float16), (TOKENS, 1)),
        target_tail_logprob=np.full(TOKENS, np.log(0.1), np.float32), drafted_ids=tokens,
        accepted=np.ones(TOKENS, bool), draft_versions=np.ones(TOKENS, np.int32),
    )  # fmt: skip


def trigger(config: HotdraftConfig) -> dict[str, float]:
    from hotdraft.pipeline.loop.trigger import DistillTrigger
    from hotdraft.pipeline.replay.buffer import ReplayBuffer

    began = time.perf_counter()
    watching = DistillTrigger(config, ReplayBuffer.of(config))
    decision = watching.decide()
    seconds = time.perf_counter() - began
    began = time.perf_counter()
    watching.decide()
    return {"seconds": seconds, "look_seconds": time.perf_counter() - began, "new_requests": decision.new_requests}


def job(config: HotdraftConfig) -> dict[str, float]:
    """What a job does before it loads its draft, and the batches that it draws then."""
    from hotdraft.pipeline.replay.buffer import ReplayBuffer
    from hotdraft.training.batches.pools import mix_of
    from hotdraft.training.batches.replay_data import ReplayDataModule

    began, cpu = time.perf_counter(), time.process_time()
    data = ReplayDataModule.for_job(
        ReplayBuffer.of(config).rows(), config.distill, config.replay.held_out_fraction, VOCABULARY
    )
    judged = data.held_out_by_domain(mix_of(data.domains, config.distill), config.gate)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    began = time.perf_counter()
    batches = data.batches()
    for number in range(20):
        batches.batch(number)
    batch_seconds = (time.perf_counter() - began) / 20
    return {
        "seconds": seconds, "cpu_seconds": cpu_seconds, "batch_seconds": batch_seconds, "held_out": len(judged)
    }  # fmt: skip


def stats(config: HotdraftConfig) -> dict[str, float]:
    from hotdraft.pipeline.replay.buffer import ReplayBuffer

    began = time.perf_counter()
    found = ReplayBuffer.of(config).stats()
    return {"seconds": time.perf_counter() - began, "requests": found.requests, "shards": found.shards}


def append(config: HotdraftConfig) -> dict[str, float]:
    from hotdraft.pipeline.replay.buffer import ReplayBuffer

    buffer = ReplayBuffer.of(config)
    times = []
    for number in range(40):
        samples = [sample(COMMITTED_TOGETHER * number + index) for index in range(COMMITTED_TOGETHER)]
        began = time.perf_counter()
        buffer.append(samples)
        times.append(time.perf_counter() - began)
    return {"first_seconds": times[0], "median_seconds": float(np.median(times)), "longest_seconds": max(times)}


PARTS = {part.__name__: part for part in (trigger, job, stats, append)}


def measured(part: str, run_dir: Path, repeats: int = 1) -> dict[str, float]:
    """Of `repeats` the one that took the processor least: others had the machine at the same time."""
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.operating.bench_buffer",
        "--part",
        part,
        "--run-dir",
        str(run_dir),
    ]
    turns = []
    for _ in range(repeats):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        turns.append(json.loads(done.stdout.splitlines()[-1]))
    found = min(turns, key=lambda turn: turn["cpu_seconds"])
    print(part, found, flush=True)
    return found


def config_of(run_dir: Path) -> HotdraftConfig:
    return HotdraftConfig(target="t", run_dir=run_dir)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--shard-requests", type=int, default=5_120)
    parser.add_argument("--group-rows", type=int, default=64)
    parser.add_argument("--old-shards", type=int, default=10_000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--run-dir", type=Path)
    arguments = parser.parse_args()
    if arguments.part:
        config = config_of(arguments.run_dir)
        import hotdraft.training.batches.replay_data  # noqa: F401  # so that no figure holds the import of torch, and each the memory for it

        base, cpu = _resident(), time.process_time()
        found = PARTS[arguments.part](config)
        found = {"cpu_seconds": time.process_time() - cpu} | found
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        print(json.dumps(found | {"imports_mb": base, "peak_mb": peak}))
        return
    with tempfile.TemporaryDirectory(prefix="bench-buffer-") as folder:
        large, old = Path(folder) / "large", Path(folder) / "old"
        began = time.perf_counter()
        make(config_of(large), arguments.requests, arguments.shard_requests, arguments.group_rows)
        size = sum(path.stat().st_size for path in large.rglob("*.parquet"))
        print(f"made {arguments.requests} requests, {size / 1e6:.0f} MB, in {time.perf_counter() - began:.0f} s")
        result: dict[str, object] = {
            "large": {name: measured(name, large, 5) for name in ("trigger", "job", "stats")}
        }
        make_old(config_of(old), arguments.old_shards)
        first = {name: measured(name, old) for name in ("trigger", "job")}
        appended = [measured("append", old) for _ in range(5)]
        later = {name: measured(name, old, 1 if name == "append" else 3) for name in ("trigger", "job", "append")}
        result["old"] = {"first": first, "appended": appended, "later": later}
    sizes = {name: getattr(arguments, name) for name in ("requests", "shard_requests", "group_rows", "old_shards")}
    machine = {"machine": platform.machine(), "cpus": os.cpu_count(), "load": os.getloadavg()[0]}
    result |= {"sizes": sizes | {"bytes": size}, **machine}
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    main()
