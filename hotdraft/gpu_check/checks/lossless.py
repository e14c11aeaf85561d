"""The step `lossless`: greedy tokens do not depend on drafting, on the rows beside them, or on graphs.

Nor do the rounds that they take: a draft that reads wrong things costs no token, and may go unseen.
"""

from collections.abc import Sequence
from typing import Any

import torch

from hotdraft.gpu_check.checks.decoding import answer, graphs_of, make_decoder, prompts_of
from hotdraft.gpu_check.plan import DRAFTED, CheckPlan, Found, Pair
from hotdraft.pipeline.models.loading import load_causal_lm
from hotdraft.serving.benchmark.equality import first_divergence, margin

TOKENS = 48
TIE = 1e-3
"""Logits, of order 10, that differ by less in float32 may fall either way: sums are added in another order."""
ROUNDS = 0.05
"""By which share the rounds of rows together may differ from those of each alone, as a tie may fall otherwise."""


def check(plan: CheckPlan) -> Found:
    pair = Pair.read(plan)
    decoder = make_decoder(plan, pair.small, pair.draft, torch.float32, graphs_of(plan))
    prompts = prompts_of(8)
    outputs: dict[str, list[list[int]]] = {}
    found = Found()
    for k in (0, 1, DRAFTED):
        rounds = {}
        for rows in (1, 8):
            name = f"k = {k}, {rows} at once"
            groups = [answer(decoder, prompts[at : at + rows], k, TOKENS) for at in range(0, len(prompts), rows)]
            outputs[name] = [tokens for answers, _ in groups for tokens in answers]
            rounds[rows] = sum(count for _, counts in groups for count in counts)
            found.figures[f"{name}, tokens a round"] = len(prompts) * TOKENS / rounds[rows]
        if abs(rounds[8] / rounds[1] - 1) > ROUNDS:
            found.wrong.append(f"k = {k}: what the draft proposes is worth another number of rounds beside others")
    del decoder
    model = load_causal_lm(pair.small, device=plan.place)
    expected = [_generated(model, prompt) for prompt in prompts]
    for name, answers in outputs.items():
        parted = [first_divergence(*told) for told in zip(prompts, answers, expected, strict=True)]
        margins = [margin(model, one) for one in parted if one is not None]
        found.figures[name] = f"{len(prompts) - len(margins)} of {len(prompts)} as transformers'" + (
            f", margins {', '.join(f'{one:.1e}' for one in margins)}" if margins else ""
        )
        if any(one > TIE for one in margins):
            found.wrong.append(f"{name}: a token is not the target's most likely one, by {max(margins):.3g}")
    return found


def _generated(model: Any, prompt: Sequence[int]) -> list[int]:
    ids = torch.tensor([prompt], device=model.device)
    options = {"max_new_tokens": TOKENS, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(prompt) :].tolist()
