"""What a forward of the native library takes by the number of tokens; of two builds by turns.

    python -m tests.benchmarks.serving.bench_forward --model smollm2 --against before.so --json out.json

`--against` names a library built of other sources. Of each turn the median forward is taken: its median over the
turns, the least and the most. Ratios are of turns that followed each other. What memory reads is told twice.
"""

import argparse
import ctypes
import json
import os
import statistics
import time
from collections.abc import Callable
from ctypes import byref
from pathlib import Path

import numpy as np
import torch

from hotdraft.pipeline.models.loading import load_causal_lm
from hotdraft.pipeline.models.names import resolve
from hotdraft.serving.models.native_runner import NativeRunner
from hotdraft.serving.native.bindings import Format, ThreadPool, find_instructions, load_library, native_library
from hotdraft.serving.native.linear import NativeLinear
from hotdraft.serving.native.memory import WeightMemory

FORWARDS = 30
"""In a turn."""
MAX_LENGTH = 1024


def main() -> None:
    arguments = parse()
    torch.set_num_threads(1)
    format, instructions = Format[arguments.format.upper()], find_instructions(arguments.instructions)
    dtype = torch.float32 if format is Format.FLOAT32 else torch.bfloat16
    model = load_causal_lm(resolve(arguments.model), dtype=dtype)
    memory, pool = WeightMemory(), ThreadPool(instructions, arguments.threads)
    head = NativeLinear.of({"head": model.get_output_embeddings()}, format, memory)
    runner = NativeRunner(model, head, 1, MAX_LENGTH, format=format, memory=memory, pool=pool)
    forwards = {"this": forward_of(native_library(), runner, arguments)}
    if arguments.against is not None:
        forwards = {"other": forward_of(load_library(arguments.against.resolve()), runner, arguments), **forwards}
    reads = [runner.read_speed() / 1e9]
    turns = {(count, name): list[float]() for count in arguments.tokens for name in forwards}
    for _ in range(arguments.turns):
        for count, name in turns:
            turns[count, name].append(turn(forwards[name], count))
    reads.append(runner.read_speed() / 1e9)
    report: dict[str, object] = {"instructions": instructions, "reads, GB/s": reads}
    first = next(iter(forwards))
    for (count, name), taken in turns.items():
        median, least, most = statistics.median(taken), min(taken), max(taken)
        pairs = zip(taken, turns[count, first], strict=True)
        ratio = statistics.median(own / of_first for own, of_first in pairs)
        report[f"{count} tokens, {name}"] = {"ms": median, "least": least, "most": most, "ratio": ratio}
        print(f"{count:4} tokens, {name:5}: {median:6.2f} ms ({least:.2f}-{most:.2f}), ratio {ratio:.3f}")
    print("memory reads at", " and ".join(f"{speed:.1f}" for speed in reads), "GB/s")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


def forward_of(library: ctypes.CDLL, runner: NativeRunner, arguments: argparse.Namespace) -> Callable[[int], None]:
    """Of so many tokens of one row, with a pool of the library's own."""
    instructions = find_instructions(arguments.instructions).encode()
    pool = ctypes.c_void_p(library.hd_pool_create(instructions, arguments.threads))

    def forward(count: int) -> None:
        token_ids = np.full(count, 17, np.int64)
        positions = np.arange(arguments.context, arguments.context + count)
        logits = np.empty((count, runner.num_outputs), np.float32)
        told = (token_ids.ctypes.data, positions.ctypes.data, None)
        library.hd_forward(byref(runner._model), pool, 0, 1, count, None, *told, count, logits.ctypes.data)

    return forward


def turn(forward: Callable[[int], None], count: int) -> float:
    """Milliseconds, the median."""
    taken = []
    for _ in range(FORWARDS):
        began = time.perf_counter()
        forward(count)
        taken.append(1000 * (time.perf_counter() - began))
    return statistics.median(taken)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--format", choices=[format.name.lower() for format in Format], default="bfloat16")
    parser.add_argument("--instructions", default="auto")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6, 8, 12, 15, 16, 18, 24])
    parser.add_argument("--context", type=int, default=200)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
