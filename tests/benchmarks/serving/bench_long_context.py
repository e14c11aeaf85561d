"""What a draft's window is worth on long prompts, beside a draft that reads all and no draft.

    python -m tests.benchmarks.serving.bench_long_context --config configs/smollm2.yaml --json out.json

A prompt is a question about the last of many texts: those of `--prompts`, which are JSON lines, else built-in news.
All engines live in one process and answer each prompt in turn, in an order drawn anew; ratios are of prompts.
"""

import argparse
import itertools
import json
import queue
import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from hotdraft.pipeline.config.settings import HotdraftConfig, load_config
from hotdraft.pipeline.models.loading import load_tokenizer
from hotdraft.pipeline.models.names import resolve
from hotdraft.pipeline.traffic.generators.varied import of_kind
from hotdraft.pipeline.traffic.prompts import Prompt, read_traffic
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.engine.load import build_engine
from hotdraft.serving.messages.prompt_encoder import encode_chat
from hotdraft.serving.messages.request import GenerationRequest, OutputDelta, SamplingParams

TEMPLATE_TOKENS = 24
"""At the beginning of each prompt, which cutting leaves alone."""
FEW = 16
"""Tokens: a shorter answer tells nothing of decoding."""


def engines_of(arguments: argparse.Namespace) -> dict[str, Engine]:
    config = load_config(arguments.config)
    changes = {
        "window": {"draft_window": arguments.window},
        "whole": {"draft_window": None},
        "plain": {"k": 0},
    }
    return {name: engine_of(config, arguments, change) for name, change in changes.items()}


def engine_of(config: HotdraftConfig, arguments: argparse.Namespace, changes: dict[str, object]) -> Engine:
    common: dict[str, object] = {
        "proposers": ["draft"],
        "threads": arguments.threads,
        "num_slots": 1,
        "max_model_len": max(arguments.lengths) + arguments.max_tokens,
        "reuse_prefixes": False,
    }
    section = config.engine.model_copy(update=common | changes)
    draft = config.draft if section.k != 0 else None
    engine = build_engine(config.model_copy(update={"engine": section, "draft": draft}), None)
    engine.start()
    return engine


def long_prompts(
    texts: list[Prompt], tokenizer: PreTrainedTokenizerBase, length: int, count: int, seed: int
) -> Iterator[tuple[int, ...]]:
    """Each of just `length` tokens, and another order of `texts`."""
    generator = random.Random(seed)
    for _ in range(count):
        chosen: list[str] = []
        ids: tuple[int, ...] = ()
        for text in itertools.chain.from_iterable(generator.sample(texts, len(texts)) for _ in itertools.count()):
            chosen.insert(0, text.messages[-1]["content"])
            ids = tuple(encode_chat(tokenizer, [{"role": "user", "content": "\n\n".join(chosen)}]))
            if len(ids) >= length:
                break
        yield ids[:TEMPLATE_TOKENS] + ids[TEMPLATE_TOKENS - length :]


def answer(engine: Engine, prompt: tuple[int, ...], max_tokens: int) -> tuple[float, float, float] | None:
    """Seconds to the first token, tokens/s behind it, and tokens a round; None for a short answer."""
    deltas: queue.SimpleQueue[tuple[float, OutputDelta]] = queue.SimpleQueue()
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    began = time.perf_counter()
    engine.submit(GenerationRequest("long", prompt, params), lambda delta: deltas.put((time.perf_counter(), delta)))
    first, delta = deltas.get()
    early, last = len(delta.token_ids), first
    while delta.finish_reason is None:
        last, delta = deltas.get()
    tokens = delta.stats.completion_tokens
    if tokens < FEW:
        return None
    return first - began, (tokens - early) / (last - first), tokens / delta.stats.rounds


def main(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(arguments.threads)
    tokenizer = load_tokenizer(resolve(load_config(arguments.config).target))
    texts = read_traffic(str(arguments.prompts)) if arguments.prompts else of_kind("paragraph", 400, arguments.seed)
    engines, generator = engines_of(arguments), random.Random(arguments.seed)
    report: dict[str, object] = {"settings": {name: str(value) for name, value in vars(arguments).items()}}
    for length in arguments.lengths:
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in engines}
        for prompt in long_prompts(texts, tokenizer, length, arguments.requests, arguments.seed + length):
            answers = {
                name: answer(engines[name], prompt, arguments.max_tokens)
                for name in generator.sample(list(engines), len(engines))
            }
            told = {name: one for name, one in answers.items() if one is not None}
            if len(told) == len(engines):  # ratios are of prompts that all of them answered
                for name, one in told.items():
                    found[name].append(one)
        report[str(length)] = figures = {name: figures_of(found, name) for name in engines}
        print(f"{length} tokens, {len(found['plain'])} prompts")
        for name, each in figures.items():
            print(f"  {name:7}" + "".join(f"  {key} {value}" for key, value in each.items()), flush=True)
    for engine in engines.values():
        engine.stop()
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


def figures_of(found: dict[str, list[tuple[float, float, float]]], name: str) -> dict[str, float | str]:
    first, speed, length = np.array(found[name]).T
    figures: dict[str, float | str] = {
        "first token ms": round(1000 * float(np.median(first))),
        "tokens/s": round(float(np.median(speed)), 1),
        "tokens/round": round(float(np.mean(length)), 2),
    }
    for other in found:
        if other != name:
            own, theirs = np.array(found[name]), np.array(found[other])
            for column, what in ((0, "first token"), (1, "tokens/s")):
                low, middle, high = np.quantile(own[:, column] / theirs[:, column], [0.25, 0.5, 0.75])
                figures[f"{what} over {other}"] = f"{middle:.2f} ({low:.2f}-{high:.2f})"
    return figures


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/smollm2.yaml"))
    parser.add_argument("--prompts", type=Path, help="JSON lines of texts with a task, in place of built-in ones")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2000, 4000, 8000])
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main(parse())
