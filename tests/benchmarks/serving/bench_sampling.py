"""What sampling costs: rounds with temperature, filters and seeds over greedy ones; and what a seed accepts.

    python -m tests.benchmarks.serving.bench_sampling --config configs/smollm2.yaml --prompts 64 --json out.json

Rounds of each kind take turns over the same prompts, in an order drawn anew for each repeat. Ratios are of medians
of a repeat, in wall time and in that of the decoding thread, which others on the machine disturb less. Acceptance
with and without a seed is of whole answers to the same prompts, by drafted token that was examined, with the
standard error over prompts.
"""

import argparse
import json
import random
import time
from pathlib import Path

import numpy as np
import torch

from hotdraft.pipeline.config.settings import load_config
from hotdraft.pipeline.models.loading import load_tokenizer
from hotdraft.pipeline.models.names import resolve
from hotdraft.pipeline.traffic.generators.varied import varied
from hotdraft.serving.decoding.decoder import SpeculativeDecoder
from hotdraft.serving.engine.load import build_engine
from hotdraft.serving.messages.prompt_encoder import encode_chat
from hotdraft.serving.messages.request import SamplingParams
from hotdraft.serving.proposers.plan import ProposalPlan
from hotdraft.serving.sampling.logits import SamplingBatch

KINDS = {
    "greedy": SamplingParams(temperature=0),
    "temperature 0.8": SamplingParams(temperature=0.8),
    "temperature 1": SamplingParams(),
    "top_p 0.9, temperature 0.8": SamplingParams(temperature=0.8, top_p=0.9),
    "top_p 0.9, temperature 1": SamplingParams(top_p=0.9),
    "top_k 50": SamplingParams(top_k=50),
    "seeded, temperature 0.8": SamplingParams(temperature=0.8, seed=1),
    "seeded, temperature 1": SamplingParams(seed=1),
    "seeded, top_p 0.9, temperature 0.8": SamplingParams(temperature=0.8, top_p=0.9, seed=1),
}
ROUNDS = 4
"""Of each kind in a turn, after one that warms up."""


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    overrides = {"engine": {"k": arguments.k, "num_slots": arguments.rows, "threads": arguments.threads}}
    config = load_config(arguments.config, overrides)
    decoder = build_engine(config, None).decoder
    tokenizer = load_tokenizer(resolve(config.target))
    texts = varied(max(arguments.rows, arguments.prompts), seed=0)
    prompts = [encode_chat(tokenizer, prompt.messages) for prompt in texts]
    settings = {name: str(value) for name, value in vars(arguments).items() if name != "json"}
    report: dict[str, object] = {"settings": settings}
    if arguments.repeats:
        report["rounds"] = round_costs(decoder, prompts[: arguments.rows], arguments.k, arguments.repeats)
    if arguments.prompts:
        report["acceptance"] = acceptance(decoder, prompts[: arguments.prompts], arguments)
    print(json.dumps(report, indent=2))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=15, help="of rounds; 0 leaves them out")
    parser.add_argument("--prompts", type=int, default=0, help="to measure acceptance with; 0 leaves it out")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def load(decoder: SpeculativeDecoder, prompts: list[list[int]]) -> None:
    for row, prompt in enumerate(prompts):
        decoder.load(row, prompt)
        while not decoder.prefill(row, 64, with_proposer=True):
            pass


def round_costs(decoder: SpeculativeDecoder, prompts: list[list[int]], k: int, repeats: int) -> dict[str, object]:
    """Of each kind the median milliseconds, and the ratios to greedy: quartiles, lowest and highest of repeats."""
    load(decoder, prompts)
    order, rows = random.Random(0), len(prompts)
    times: dict[str, list[np.ndarray]] = {name: [] for name in KINDS}
    for repeat in range(repeats):
        for name in order.sample(list(KINDS), len(KINDS)):
            for row, prompt in enumerate(prompts):
                decoder.rewind(row, len(prompt))
            seeds = range(repeat * rows, (repeat + 1) * rows)
            sampling = SamplingBatch.of([KINDS[name]] * rows, seeds, decoder.device)
            seconds = []
            for _ in range(1 + ROUNDS):
                started = now()
                decoder.round(ProposalPlan.uniform(rows, k), sampling, log=False)
                seconds.append(now() - started)
            times[name].append(np.median(seconds[1:], axis=0))
    greedy = np.array(times["greedy"])
    report: dict[str, object] = {}
    for name, values in times.items():
        ratios = np.quantile(np.array(values) / greedy, [0, 0.25, 0.5, 0.75, 1], axis=0).round(3)
        report[name] = {
            "milliseconds": round(1e3 * float(np.median(values, axis=0)[0]), 1),
            "over greedy": ratios[:, 0].tolist(),
            "over greedy, thread time": ratios[:, 1].tolist(),
        }
    return report


def now() -> np.ndarray:
    """Wall and thread seconds."""
    return np.array([time.perf_counter(), time.thread_time()])


def acceptance(decoder: SpeculativeDecoder, prompts: list[list[int]], arguments: argparse.Namespace) -> dict:
    """Of each temperature the share of examined tokens that was accepted, and the tokens of a round."""
    report: dict[str, object] = {}
    for temperature in (0.8, 1.0):
        for seed in (None, 1):
            params = SamplingParams(temperature=temperature, seed=seed)
            counts = [
                count
                for start in range(0, len(prompts), arguments.rows)
                for count in answered(decoder, prompts[start : start + arguments.rows], params, start, arguments)
            ]
            accepted, examined, rounds = np.array(counts).T
            rate = accepted.sum() / examined.sum()
            error = np.sqrt(((accepted - rate * examined) ** 2).sum()) / examined.sum()
            report[f"temperature {temperature}, {'no seed' if seed is None else 'seeded'}"] = {
                "accepted over examined": round(float(rate), 4),
                "standard error": round(float(error), 4),
                "tokens a round": round(float(1 + accepted.sum() / rounds.sum()), 3),
            }
    return report


def answered(
    decoder: SpeculativeDecoder,
    prompts: list[list[int]],
    params: SamplingParams,
    first_seed: int,
    arguments: argparse.Namespace,
) -> list[tuple[int, int, int]]:
    """Accepted and examined tokens and rounds of each prompt's answer."""
    load(decoder, prompts)
    rows, k = len(prompts), arguments.k
    sampling = SamplingBatch.of([params] * rows, range(first_seed, first_seed + rows), decoder.device)
    counts, lengths = np.zeros((rows, 3), int), np.zeros(rows, int)
    while lengths.min() < arguments.max_tokens:
        accepted = decoder.round(ProposalPlan.uniform(rows, k), sampling, log=False).num_accepted
        going_on = lengths < arguments.max_tokens
        counts[going_on] += np.stack([accepted, np.minimum(accepted + 1, k), np.ones_like(accepted)], 1)[going_on]
        lengths += accepted + 1
    return [tuple(row) for row in counts.tolist()]


if __name__ == "__main__":
    main()
