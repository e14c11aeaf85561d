"""Token trees of fixed size: tokens a round and a second by drafted tokens and second choices.

    python -m tests.benchmarks.serving.bench_tree --config configs/smollm2.yaml --prompts questions.jsonl

Every prompt is answered greedily under each plan in turn, by one decoder; all answers must be the same.
"""

import argparse
import json
import random
import statistics
import time
from pathlib import Path

import torch

from hotdraft.pipeline.config.settings import load_config
from hotdraft.pipeline.models.loading import choose_dtype, load_causal_lm, load_tokenizer
from hotdraft.pipeline.models.names import resolve
from hotdraft.pipeline.traffic.generators.arithmetic import arithmetic
from hotdraft.pipeline.traffic.prompts import read_traffic
from hotdraft.serving.decoding.build import build_decoder
from hotdraft.serving.decoding.decoder import SpeculativeDecoder
from hotdraft.serving.engine.load import draft_vocabulary
from hotdraft.serving.messages.prompt_encoder import encode_chat
from hotdraft.serving.messages.request import SamplingParams
from hotdraft.serving.models.attention import ATTENTION, register_attention
from hotdraft.serving.proposers.plan import ProposalPlan
from hotdraft.serving.sampling.logits import SamplingBatch

PLANS = ((0, 0), (2, 0), (2, 2), (3, 0), (3, 2), (4, 0), (4, 2), (4, 4), (4, 8), (8, 0), (8, 8), (8, 16))
"""Drafted tokens, second choices."""
MOST, MOST_ALTERNATIVES = 8, 16


def answer(
    decoder: SpeculativeDecoder, prompt: list[int], plan: ProposalPlan, length: int
) -> tuple[list[int], int]:
    """So many tokens, and the rounds that they took."""
    decoder.load(0, prompt)
    while not decoder.prefill(0, 256, with_proposer=True):
        pass
    greedy = SamplingBatch.of([SamplingParams(temperature=0)], [0], decoder.device)
    answered: list[int] = []
    rounds = 0
    while len(answered) < length:
        outcome = decoder.round(plan, greedy, log=False)
        answered += outcome.token_ids[0, : outcome.num_new[0]].tolist()
        rounds += 1
    return answered, rounds


def encoded(arguments: argparse.Namespace, target: str) -> list[list[int]]:
    """The token ids of `--prompts`, or of built-in ones."""
    asked = read_traffic(arguments.prompts) if arguments.prompts else arithmetic(arguments.requests, seed=3)
    tokenizer = load_tokenizer(resolve(target))
    return [list(encode_chat(tokenizer, prompt.messages)) for prompt in asked]


def main(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(arguments.threads)
    register_attention()
    config = load_config(arguments.config)
    assert config.draft is not None, "a draft is what this is about"
    device = torch.device("cpu")
    target, draft = (
        load_causal_lm(resolve(name), dtype=choose_dtype(config.dtype, device), attn_implementation=ATTENTION)
        for name in (config.target, config.draft)
    )
    vocabulary = draft_vocabulary(config, target.config.vocab_size)
    decoder = build_decoder(
        target,
        draft,
        num_slots=1,
        max_model_len=1024,
        max_k=MOST,
        max_alternatives=MOST_ALTERNATIVES,
        log_top_k=8,
        draft_vocabulary=vocabulary,
    )
    torch.set_num_threads(1)  # as the engine does
    prompts = encoded(arguments, config.target)
    prompts = [prompt for prompt in prompts if len(prompt) + arguments.max_tokens + 20 < 1024]
    order = random.Random(0)
    prompts = order.sample(prompts, min(arguments.requests, len(prompts)))
    speeds: dict[tuple[int, int], list[float]] = {plan: [] for plan in PLANS}
    lengths: dict[tuple[int, int], list[float]] = {plan: [] for plan in PLANS}
    for prompt in prompts:
        answers = set()
        for plan in order.sample(PLANS, len(PLANS)):
            began = time.perf_counter()
            answered, rounds = answer(decoder, prompt, ProposalPlan.uniform(1, *plan), arguments.max_tokens)
            speeds[plan].append(len(answered) / (time.perf_counter() - began))
            lengths[plan].append(len(answered) / rounds)
            answers.add(tuple(answered[: arguments.max_tokens]))
        assert len(answers) == 1, "no plan changes a token"
    found = []
    for plan in PLANS:
        chain = (plan[0], 0)
        ratios = [own / other for own, other in zip(speeds[plan], speeds[chain], strict=True)]
        found.append(
            {
                "drafted": plan[0],
                "alternatives": plan[1],
                "tokens_a_round": statistics.mean(lengths[plan]),
                "over_chain": statistics.mean(lengths[plan]) / statistics.mean(lengths[chain]),
                "tokens_a_second": statistics.median(speeds[plan]),
                "speed_over_chain": statistics.quantiles(ratios, n=4),
            }
        )
        print(
            {
                name: value if isinstance(value, int) else f"{value:.2f}"
                for name, value in list(found[-1].items())[:-1]
            }
        )
    if arguments.json:
        settings = {name: str(value) for name, value in vars(arguments).items()}
        computations = str(decoder.target.runner.computation)
        report = {"settings": settings, "computation": computations, "prompts": len(prompts), "plans": found}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, help="JSONL; built-in arithmetic else")
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    main(parser.parse_args())
