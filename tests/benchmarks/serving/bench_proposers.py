"""What proposers are worth: tokens a second of the choice among them, of each alone and of none, by traffic.

    python -m tests.benchmarks.serving.bench_proposers --config configs/smollm2.yaml --requests 60 --json out.json

All engines live in one process and answer the same blocks of requests in turn, in an order drawn anew for each
block; each remembers its own answers. Ratios are of blocks, with their quartiles. `sql` is the built-in text-to-SQL
traffic, `edits` a document that is changed in turns, `mixed` many kinds of question, `file` what `--prompts` has.
"""

import argparse
import json
import random
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from hotdraft.pipeline.config.settings import HotdraftConfig, load_config
from hotdraft.pipeline.models.loading import load_tokenizer
from hotdraft.pipeline.models.names import resolve
from hotdraft.pipeline.traffic.generators.arithmetic import arithmetic
from hotdraft.pipeline.traffic.generators.text_to_sql import text_to_sql
from hotdraft.pipeline.traffic.generators.varied import varied
from hotdraft.pipeline.traffic.prompts import Prompt, read_traffic
from hotdraft.serving.benchmark.plan import unseen
from hotdraft.serving.decoding.choice import Choice, ProposalChoice
from hotdraft.serving.decoding.learned_costs import RoundSetting
from hotdraft.serving.decoding.outlook import Outlook
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.engine.load import build_engine
from hotdraft.serving.messages.prompt_encoder import encode_chat
from hotdraft.serving.messages.request import GenerationRequest, OutputDelta, RequestStats, SamplingParams

Asked = tuple[list[dict[str, str]], str]
"""Messages, and their domain."""
ENGINES: dict[str, dict[str, object]] = {
    "choice": {"proposers": ["draft", "suffix"]},
    "draft": {"proposers": ["draft"]},
    "chain": {"proposers": ["draft"], "max_alternatives": 0},
    "suffix": {"proposers": ["suffix"]},
    "plain": {"k": 0},
    "one k": {"proposers": ["draft"], "max_alternatives": 0},
    "other": {"proposers": ["draft"], "draft_window": None},
}
"""`chain` drafts as `draft` does, without second choices; `one k` as many tokens for every request of a round;
`other` with the draft of `--other-draft`."""
EDITS = (
    "Replace the word 'team' by 'group'.",
    "Add a sentence about the budget at the end.",
    "Make the first sentence shorter.",
    "Put the second sentence into the past tense.",
    "Remove every adjective from the last sentence.",
)


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    config = load_config(arguments.config)
    tokenizer = load_tokenizer(resolve(config.target))
    engines = {}
    for name in arguments.engines:
        changes = ENGINES[name]
        section = config.engine.model_copy(
            update={"k": "auto", "threads": arguments.threads, "num_slots": max(arguments.together, 1), **changes}
        )
        own = arguments.other_draft if name == "other" else config.draft
        draft = own if "draft" in section.proposers and section.k != 0 else None
        engines[name] = build_engine(config.model_copy(update={"engine": section, "draft": draft}), None)
        engines[name].start()
        known = engines[name].k_choice.adaptive
        if name == "one k" and known is not None:
            engines[name].k_choice.adaptive = OneK(known.costs, config.engine.max_k)
    report: dict[str, object] = {"settings": {name: str(value) for name, value in vars(arguments).items()}}
    for traffic, conversations in traffics(arguments, config).items():
        prompts = [(tuple(encode_chat(tokenizer, messages)), domain) for messages, domain in conversations]
        report[traffic] = found = measure(engines, traffic, prompts, arguments)
        print(f"{traffic}: {len(prompts)} requests, {arguments.together} at once")
        for name, figures in found.items():
            print(f"  {name:8}" + "".join(f"  {key} {value}" for key, value in figures.items()))
    for engine in engines.values():
        engine.stop()
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


class OneK(ProposalChoice):
    """The best k that all rows could share, and now and then one more."""

    def choose(self, rows: Sequence[Outlook], setting: RoundSetting | None = None) -> Choice:
        drafting = [row.drafted for row in rows if len(row.drafted)]
        if not drafting:
            return Choice([0] * len(rows), [0] * len(rows))
        mean = np.mean([np.pad(each.cumprod(), (1, 0), constant_values=1).cumsum() for each in drafting], axis=0)
        first = (
            np.diff(mean) / np.diff(mean, prepend=0.0)[:-1]
        )  # of rows whose tokens come as often as all rows' do
        alike = Outlook(np.empty(0), first, max(row.most for row in rows))
        k = super().choose([alike] * len(rows), setting).drafted[0]
        return Choice([0] * len(rows), [min(k, row.most, len(row.drafted)) for row in rows])


def traffics(arguments: argparse.Namespace, config: HotdraftConfig) -> dict[str, list[Asked]]:
    count = arguments.requests
    found = {
        "sql": asked(text_to_sql(count, seed=arguments.seed)),
        "arithmetic": asked(arithmetic(count, seed=arguments.seed)),
        "mixed": asked(unseen(varied(3 * count, seed=arguments.seed + 1), config)[:count]),
        "edits": edits(count, arguments.seed),
    }
    if arguments.prompts is not None:
        found["file"] = asked(read_traffic(str(arguments.prompts)))[:count]
    return {name: found[name] for name in arguments.traffic or found}


def asked(prompts: Iterable[Prompt]) -> list[Asked]:
    return [(prompt.messages, prompt.domain) for prompt in prompts]


def edits(count: int, seed: int) -> list[Asked]:
    """Each request has a document, which is the same for five of them, and one change to be made."""
    random_ = random.Random(seed)
    places, months = ("Lyon", "Oslo", "Porto", "Gdansk", "Graz"), ("March", "June", "September", "November")
    conversations: list[Asked] = []
    for index in range(count):
        if index % len(EDITS) == 0:
            place, month, number = random_.choice(places), random_.choice(months), random_.randint(3, 40)
            document = (
                f"The team in {place} met in {month} to plan the new warehouse. {number} people took part, and the "
                f"team agreed on a careful schedule. The old building will be sold by the end of the year. "
                f"Deliveries from {place} to the northern region continue without any change. A final report is "
                f"due in {month}."
            )
        wanted = f"{EDITS[index % len(EDITS)]} Answer with the whole text.\n\n{document}"
        conversations.append(([{"role": "user", "content": wanted}], "edits"))
    return conversations


def measure(
    engines: dict[str, Engine],
    traffic: str,
    prompts: Sequence[tuple[tuple[int, ...], str]],
    arguments: argparse.Namespace,
) -> dict[str, dict[str, float | str]]:
    order, shuffled = list(engines), random.Random(arguments.seed)
    speeds: dict[str, list[float]] = {name: [] for name in engines}
    stats: dict[str, list[RequestStats]] = {name: [] for name in engines}
    params = SamplingParams(temperature=arguments.temperature, max_tokens=arguments.max_tokens)
    for start in range(0, len(prompts), arguments.block):
        shuffled.shuffle(order)
        block = [
            GenerationRequest(
                f"{traffic}{start + index}", prompt, replace(params, seed=None), domain, scope=traffic
            )
            for index, (prompt, domain) in enumerate(prompts[start : start + arguments.block])
        ]
        for name in order:
            began = time.perf_counter()
            ended = answer(engines[name], block, arguments.together)
            speeds[name].append(sum(one.completion_tokens for one in ended) / (time.perf_counter() - began))
            stats[name] += ended
    return {name: figures(speeds, stats[name], name) for name in engines}


def answer(engine: Engine, requests: Sequence[GenerationRequest], together: int) -> list[RequestStats]:
    free, ended = threading.Semaphore(together), []

    def on_delta(delta: OutputDelta) -> None:
        if delta.finish_reason is not None:
            ended.append(delta.stats)
            free.release()

    for request in requests:
        free.acquire()
        engine.submit(request, on_delta)
    for _ in range(together):
        free.acquire()
    return ended


def figures(speeds: dict[str, list[float]], stats: list[RequestStats], name: str) -> dict[str, float | str]:
    own = np.array(speeds[name])
    rounds, tokens = sum(one.rounds for one in stats), sum(one.completion_tokens for one in stats)
    drafted, guessed = sum(one.drafted_tokens for one in stats), sum(one.guessed_tokens for one in stats)
    found: dict[str, float | str] = {
        "tokens/s": round(float(np.median(own)), 1),
        "tokens/round": round(tokens / rounds, 2),
        "drafted": round(drafted / rounds, 2),
        "accepted": round(sum(one.accepted_tokens for one in stats) / max(drafted, 1), 2),
        "guessed": round(guessed / rounds, 2),
        "right": round(sum(one.accepted_guesses for one in stats) / max(guessed, 1), 2),
    }
    for other in speeds:
        if other != name:
            low, middle, high = np.quantile(own / np.array(speeds[other]), [0.25, 0.5, 0.75])
            found[f"over {other}"] = f"{middle:.2f} ({low:.2f}-{high:.2f})"
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--block", type=int, default=6, help="requests that an engine answers before the next does")
    parser.add_argument("--together", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--engines", nargs="*", choices=list(ENGINES), default=["choice", "draft", "suffix", "plain"]
    )
    parser.add_argument("--traffic", nargs="*", choices=["sql", "arithmetic", "mixed", "edits", "file"])
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--other-draft", help="of the engine `other`: a folder")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
