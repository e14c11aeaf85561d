"""How fast pre-distillation makes its data: `collect`'s engine beside transformers' batched `generate`.

    python tests/benchmarks/learning/bench_generation.py --target smollm2 --threads 2 --json out.json

Both answer the same prompts greedily, with exactly as many tokens each whatever the end of text, so that
static batches lose nothing to answers that end early; ours also records the target's distributions, as
`collect` does. Each has a process of its own, the turns are interleaved and their order alternates. A
turn is timed from the first prompt to the last token; the prompts of a repeat are new to both.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Run = Callable[[list[list[int]]], int]
"""Answers prompts and returns the output tokens."""


@dataclass(frozen=True)
class Settings:
    target: str
    dtype: str
    device: str
    threads: int
    num_slots: int
    max_tokens: int
    longest: int
    """Tokens of the longest prompt."""
    scratch: str
    """Folder of what ours records."""


def main() -> None:
    arguments = parse()
    from hotdraft.pipeline.models.loading import load_tokenizer
    from hotdraft.pipeline.traffic.generators.varied import varied
    from hotdraft.serving.messages.prompt_encoder import encode_chat

    tokenizer = load_tokenizer(arguments.target)
    texts = varied(arguments.prompts * (arguments.repeats + 1), seed=0)
    prompts = [encode_chat(tokenizer, prompt.messages) for prompt in texts]
    scratch = tempfile.TemporaryDirectory(prefix="bench-generation-")
    settings = Settings(
        target=arguments.target,
        dtype=arguments.dtype,
        device=arguments.device,
        threads=arguments.threads,
        num_slots=arguments.num_slots,
        max_tokens=arguments.max_tokens,
        longest=max(map(len, prompts)),
        scratch=scratch.name,
    )
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    with scratch, process(hotdraft, settings) as ours, process(transformers, settings) as theirs:
        sides = {"hotdraft": ours, "transformers": theirs}
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for repeat in range(-1, arguments.repeats):  # the first warms up
            start = (repeat + 1) * arguments.prompts
            for name in sorted(sides, reverse=repeat % 2 == 1):
                rate = ask(sides[name], prompts[start : start + arguments.prompts])
                if repeat >= 0:
                    rates[name].append(rate)
                    print(f"repeat {repeat + 1}: {name} {rate:.1f} tokens/s", flush=True)
    report = summary(settings, rates)
    print(json.dumps(report, indent=2))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--num-slots", type=int, default=32, help="batch size of both")
    parser.add_argument("--prompts", type=int, default=64, help="of each turn")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def summary(settings: Settings, rates: dict[str, list[float]]) -> dict[str, object]:
    ratios = [ours / theirs for ours, theirs in zip(rates["hotdraft"], rates["transformers"], strict=True)]
    return {
        "settings": asdict(settings),
        "tokens_per_second": rates,
        "median": {name: statistics.median(values) for name, values in rates.items()},
        "ratio": {"median": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)},
    }


def hotdraft(settings: Settings) -> Run:
    from hotdraft.answering.batch import answer_all, generation_config
    from hotdraft.pipeline.config.learning import PredistillConfig
    from hotdraft.pipeline.config.serving import EngineConfig
    from hotdraft.pipeline.config.settings import HotdraftConfig
    from hotdraft.pipeline.replay.buffer import ReplayBuffer
    from hotdraft.serving.engine.load import build_engine
    from hotdraft.serving.messages.request import GenerationRequest, SamplingParams

    config = HotdraftConfig(
        target=settings.target,
        dtype=settings.dtype,
        device=settings.device,
        engine=EngineConfig(max_model_len=settings.longest + settings.max_tokens),
        predistill=PredistillConfig(num_slots=settings.num_slots),
    )
    params = SamplingParams(max_tokens=settings.max_tokens, temperature=0.0, ignore_eos=True)
    longest = GenerationRequest("longest", (0,) * settings.longest, params)
    alone = generation_config(config, [longest] * settings.num_slots)
    engine = build_engine(alone, ReplayBuffer(settings.scratch))
    engine.start()

    def run(prompts: list[list[int]]) -> int:
        requests = [GenerationRequest(str(i), tuple(ids), params) for i, ids in enumerate(prompts)]
        counts: list[int] = []
        answer_all(engine, requests, lambda request, token_ids: counts.append(len(token_ids)))
        return sum(counts)

    return run


def transformers(settings: Settings) -> Run:
    import torch
    from transformers import GenerationConfig

    from hotdraft.pipeline.models.loading import choose_device, choose_dtype, load_causal_lm
    from hotdraft.serving.benchmark.engines.transformers_engine import left_padded

    device = choose_device(settings.device)
    model: Any = load_causal_lm(settings.target, dtype=choose_dtype(settings.dtype, device), device=device)
    model.generation_config = GenerationConfig(do_sample=False, eos_token_id=None, pad_token_id=0)

    def run(prompts: list[list[int]]) -> int:
        tokens = 0
        for start in range(0, len(prompts), settings.num_slots):
            ids, mask = (part.to(device) for part in left_padded(prompts[start : start + settings.num_slots]))
            with torch.inference_mode():
                output = model.generate(ids, attention_mask=mask, max_new_tokens=settings.max_tokens)
            tokens += output[:, ids.shape[1] :].cpu().numel()
        return tokens

    return run


@contextmanager
def process(make: Callable[[Settings], Run], settings: Settings) -> Iterator[Connection]:
    """The end of a pipe to a process that answers prompts with tokens and seconds."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=serve, args=(make, settings, there), daemon=True)
    child.start()
    there.close()
    assert here.recv() == "ready"
    yield here
    here.send(None)
    child.join(60)


def serve(make: Callable[[Settings], Run], settings: Settings, pipe: Connection) -> None:
    import torch

    torch.set_num_threads(settings.threads)
    run = make(settings)
    pipe.send("ready")
    while (prompts := pipe.recv()) is not None:
        started = time.perf_counter()
        tokens = run(prompts)
        pipe.send((tokens, time.perf_counter() - started))


def ask(pipe: Connection, prompts: list[list[int]]) -> float:
    """Tokens a second."""
    pipe.send(prompts)
    tokens, seconds = pipe.recv()
    return tokens / seconds


if __name__ == "__main__":
    main()
