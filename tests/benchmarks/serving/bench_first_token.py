"""Time to the first token by the length of the prompt, beside other engines.

    python -m tests.benchmarks.serving.bench_first_token --config configs/smollm2.yaml \\
        --against openvino,llamacpp,transformers --out first-token.json

All engines are loaded up front and asked in turn, the order turned round every other time. No prompt comes twice or
begins as another does, so no engine has anything of it in a cache.
"""

import argparse
import json
import os
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from hotdraft.pipeline.config.settings import load_config
from hotdraft.pipeline.models.loading import load_tokenizer
from hotdraft.pipeline.traffic.generators import varied
from hotdraft.serving.benchmark.engines.client import Worker
from hotdraft.serving.benchmark.engines.engine import PLAIN, EngineSettings, Mode
from hotdraft.serving.benchmark.plan import OURS, make_plan
from hotdraft.serving.benchmark.session import describe

OUTPUT = 2
"""Tokens: an engine may tell of the first with the second."""
SEED = 11


def prompts(target: str, length: int, count: int, skip: int) -> list[list[int]]:
    """So many prompts of `length` tokens, one after another out of one long text."""
    tokenizer = load_tokenizer(target)
    text = "\n\n".join(prompt.messages[-1]["content"] for prompt in varied(4000, SEED))
    ids = tokenizer(text)["input_ids"][skip:]
    assert len(ids) >= length * count, "the text is long enough"
    return [ids[at * length : (at + 1) * length] for at in range(count)]


def settings_of(arguments: argparse.Namespace) -> EngineSettings:
    config = load_config(arguments.config)
    plan = make_plan(
        config, arguments.config, against=arguments.against, concurrency=[1], traffic=None, prompts=1,
        max_tokens=OUTPUT, repeats=1, threads=arguments.threads, fixed_k=False, overhead=False, swap=False,
    )  # fmt: skip
    return replace(plan.settings, max_length=max(arguments.lengths) + OUTPUT + 16)


def first_token(worker: Worker, mode: Mode, prompt: list[int]) -> float:
    """Seconds."""
    return worker.run(mode, [prompt], OUTPUT, 1).token_times[0][0]


def main(arguments: argparse.Namespace) -> None:
    settings, target = settings_of(arguments), load_config(arguments.config).target
    found: dict[str, dict[int, list[float]]] = {}
    with ExitStack() as stack, tempfile.TemporaryDirectory() as logs:
        names = [OURS, *arguments.against]
        workers = [
            stack.enter_context(Worker(name, settings, Path(logs) / f"{name}.log", os.environ)) for name in names
        ]
        for worker in workers:
            worker.wait_ready()
        turns = [(worker, mode) for worker in workers for mode in worker.modes(1) if mode.k in (None, "auto")]
        skip = 0
        for length in arguments.lengths:
            asked = iter(prompts(target, length, len(turns) * (arguments.repeats + 1), skip))
            skip += length * len(turns) * (arguments.repeats + 1)
            for repeat in range(arguments.repeats + 1):
                for worker, mode in reversed(turns) if repeat % 2 else turns:
                    seconds = first_token(worker, mode, next(asked))
                    if repeat:  # the first one warms up
                        name = f"{worker.name}, {describe(mode)}"
                        found.setdefault(name, {}).setdefault(length, []).append(seconds)
        versions = {worker.name: worker.version for worker in workers}
    ours = found[f"{OURS}, {describe(PLAIN)}"]
    for name, by_length in found.items():
        for length, values in by_length.items():
            ratios = [value / own for value, own in zip(values, ours[length], strict=True)]
            told = f"{1000 * statistics.median(values):.0f} ms, {statistics.median(ratios):.2f} of ours plain"
            print(f"{name}, {length} tokens: {told} ({min(ratios):.2f} to {max(ratios):.2f})")
    result = {"threads": settings.threads, "dtype": settings.dtype, "versions": versions, "seconds": found}
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/smollm2.yaml"))
    parser.add_argument("--against", type=lambda text: text.split(","), default=["transformers"])
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 512, 2000])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    main(parser.parse_args())
