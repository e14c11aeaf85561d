"""Makes the shipped draft on one large GPU, from tens of millions of the target's tokens, within minutes.

    python -m tests.benchmarks.shipped_draft.make --gsm8k gsm8k_train.jsonl --spec spec_bench.jsonl --out made

`hotdraft predistill` records what a target says with its likeliest tokens, request by request, for any target. This
is for one small target, and one device with room for everything: thousands of requests are answered at once, the
target's last states stay in memory, and the draft learns its whole distribution. `--hidden-steps 4200` also
trains one layer on the target's hidden states, to see what it would reach.
"""

import argparse
import json
import random
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hotdraft.pipeline.models.draft_folder import save_draft
from hotdraft.pipeline.models.draft_vocabulary import merge_rankings, rank_tokens, save_vocabulary
from hotdraft.pipeline.models.loading import fingerprint, load_causal_lm, load_tokenizer
from hotdraft.pipeline.models.names import Cut
from hotdraft.pipeline.traffic.generators.varied import varied
from hotdraft.pipeline.traffic.prompts import Prompt, ask, read_traffic
from hotdraft.serving.benchmark.plan import SHIPPED_DRAFT
from hotdraft.serving.messages.prompt_encoder import encode_chat
from hotdraft.training.drafts.draft_init import cut_layers, freeze_shared
from tests.benchmarks.shipped_draft.batch_target import BatchTarget
from tests.benchmarks.shipped_draft.batches import Batch, Sample, batches_of, score
from tests.benchmarks.shipped_draft.distil import judge, learn
from tests.benchmarks.shipped_draft.hidden_state_draft import HiddenStateDraft, lengths_at_three

TARGET = "smollm2"
LAYERS = [0, 1, 28, 29]
TEMPERATURES = (0.0, 0.7, 1.0)
OWN_TEMPERATURE = 0.9
"""That the target writes prompts at."""
SQL = re.compile(r"\bsql\b|\bselect\b.*\bfrom\b", re.IGNORECASE | re.DOTALL)
"""What online learning is shown with, and so is kept out."""
LONGEST_PROMPT = 1400
HELD_OUT = 60
"""Questions of GSM8K, the last of the file."""
HIDDEN_TOKENS = 981_480
"""What the draft before this one had, to compare with."""


def own_prompts(target: BatchTarget, tokenizer: Any, count: int, seconds: float) -> list[Prompt]:
    """What the target itself says where a user would speak (Magpie, Xu et al., 2024)."""
    before = tokenizer.apply_chat_template([{"role": "user", "content": "@@"}], tokenize=False).split("@@")[0]
    start = list(tokenizer(before, add_special_tokens=False).input_ids)
    found: set[str] = set()
    until = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < until:
        for said in target.answers([start] * target.rows, [OWN_TEMPERATURE] * target.rows, 96):
            text = tokenizer.decode(said[:-1]).strip()
            if said[-1] == target.end and len(said) >= 5 and not SQL.search(text):
                found.add(text)
    return [ask("own", text) for text in sorted(found)]


def answered(
    target: BatchTarget, tokenizer: Any, prompts: Sequence[Prompt], until: float, most: int
) -> Iterator[Sample]:
    """Groups of prompts alike in length, in random order, until the time has come; every fourth at length."""
    encoded = [(prompt, encode_chat(tokenizer, prompt.messages)) for prompt in prompts]
    encoded.sort(key=lambda pair: len(pair[1]))
    groups = [encoded[at : at + target.rows] for at in range(0, len(encoded), target.rows)]
    random.Random(1).shuffle(groups)
    for number, group in enumerate(groups):
        if time.monotonic() > until:
            print(f"answered {number} of {len(groups)} groups", flush=True)
            return
        heat = [0.0 if prompt.temperature is None else prompt.temperature for prompt, _ in group]
        said = target.answers([ids for _, ids in group], heat, most if number % 4 else 2 * most)
        for (prompt, ids), answer in zip(group, said, strict=True):
            yield Sample(prompt.domain, ids, answer)


def rank(samples: Sequence[Sample], size: int) -> Tensor:
    counts = []
    for part in ("answer", "prompt"):
        ids = torch.tensor([token for sample in samples for token in getattr(sample, part)])
        counts.append(rank_tokens(torch.bincount(ids, minlength=size)))
    return merge_rankings(counts)


def kept_batches(
    target: BatchTarget, tokenizer: Any, model: nn.Module, sets: dict[str, list[Prompt]], most: int
) -> dict[str, list[Batch]]:
    """Greedy answers that drafts are judged by."""
    found = {}
    for name, prompts in sets.items():
        samples = []
        for at in range(0, len(prompts), target.rows):
            part = prompts[at : at + target.rows]
            ids = [encode_chat(tokenizer, prompt.messages)[:LONGEST_PROMPT] for prompt in part]
            said = target.answers(ids, [0.0] * len(ids), most)
            samples += [Sample(p.domain, *each) for p, *each in zip(part, ids, said, strict=True)]
        found[name] = batches_of(samples, target.device)
        score(model, found[name])
    return found


def main() -> None:
    options = parse()
    device = torch.device(options.device)
    torch.manual_seed(0)
    report: dict[str, Any] = {"device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"}
    began = time.monotonic()

    def tell(what: str, **figures: Any) -> None:
        print(f"[{time.monotonic() - began:6.1f} s] {what} {json.dumps(figures) if figures else ''}", flush=True)
        if figures:
            report[what] = figures
            (options.out / "report.json").write_text(json.dumps(report, indent=1))

    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer = load_tokenizer(TARGET)
    model = load_causal_lm(TARGET, dtype=torch.bfloat16, device=device)
    model.set_attn_implementation("sdpa")
    head = model.lm_head.weight.detach()
    target = BatchTarget(model, options.rows)

    questions = [] if options.gsm8k is None else read_traffic(str(options.gsm8k))
    sets = {"own": [*varied(options.kept, seed=987_654), *questions[-HELD_OUT:]]}
    if options.spec is not None:
        sets["spec"] = read_traffic(str(options.spec))
    kept = kept_batches(target, tokenizer, model, sets, options.most)
    tell("answers to judge by")

    known = {prompt.messages[0]["content"] for prompt in sets["own"]}
    prompts = [p for p in varied(options.generated, seed=SHIPPED_DRAFT[1]) if p.messages[0]["content"] not in known]
    prompts += [question for question in questions[:-HELD_OUT] for _ in range(4)]
    prompts += own_prompts(target, tokenizer, options.own, options.answer_seconds / 4)
    random.Random(2).shuffle(prompts)
    prompts = [replace(prompt, temperature=TEMPERATURES[at % 3]) for at, prompt in enumerate(prompts)]
    tell(f"{len(prompts)} prompts")
    until = time.monotonic() + options.answer_seconds
    samples = list(answered(target, tokenizer, prompts, until, options.most))
    tokens = sum(len(one.answer) for one in samples)
    tell("answered", prompts=len(samples), tokens=tokens, **Counter(one.domain for one in samples))
    target.forget()
    batches = batches_of(samples, device)
    random.Random(3).shuffle(batches)
    score(model, batches)
    tell("scored")

    draft = cut_layers(model, LAYERS)
    draft.set_attn_implementation("sdpa")
    freeze_shared(draft)
    for parameter in draft.parameters():
        parameter.data = parameter.data.float() if parameter.requires_grad else parameter.data
    tell("learned", **learn(draft, batches, head, options.learn_seconds, options.rate))
    draft = draft.to(torch.bfloat16).eval()
    for where, judged in kept.items():
        tell(f"the draft, {where}", **judge(draft, head, judged))
    folder = options.out / "draft"
    folder.mkdir()
    save_draft(folder, draft, tokenizer, Cut(TARGET, fingerprint(TARGET), LAYERS, None), slim=True)
    save_vocabulary(folder, rank(samples, len(head)))

    if options.hidden_steps:
        few = []
        while batches and sum(len(batch.places) for batch in few) < HIDDEN_TOKENS:
            few.append(batches.pop(0))
        hidden = HiddenStateDraft(model).to(device)
        hidden.learn(model, head, few, options.hidden_steps)
        for where, judged in kept.items():
            tell(f"one layer on states, {where}", **lengths_at_three(hidden, model, head, judged))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--gsm8k", type=Path, help="questions to learn from, as JSON lines")
    parser.add_argument("--spec", type=Path, help="prompts to judge by")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--generated", type=int, default=SHIPPED_DRAFT[0])
    parser.add_argument("--own", type=int, default=110_000)
    parser.add_argument("--kept", type=int, default=360)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--most", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--answer-seconds", type=float, default=240)
    parser.add_argument("--learn-seconds", type=float, default=240)
    parser.add_argument("--rate", type=float, default=1.2e-3)
    parser.add_argument("--hidden-steps", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
