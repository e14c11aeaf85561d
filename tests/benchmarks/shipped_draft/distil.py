"""Learning a target's whole distribution from its states, and what a draft then agrees with."""

import math
import random
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.benchmarks.shipped_draft.batches import Batch, states_of

CHUNK = 4096
"""Positions whose logits exist at a time."""
WARM_UP = 200
DRAFTED = 3
"""Tokens of the rounds that drafts are judged by."""


class Distillation(torch.autograd.Function):
    """Forward KL of the whole vocabulary from states [N, H] of the target to those of a draft, summed.

    The gradient is taken chunk by chunk, so that few logits exist at a time.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, states: Tensor, head: Tensor) -> Tensor:
        gradient = torch.empty_like(hidden)
        total = hidden.new_zeros((), dtype=torch.float32)
        for start in range(0, len(hidden), CHUNK):
            rows = slice(start, start + CHUNK)
            target_logs = F.log_softmax((states[rows] @ head.T).float(), -1)
            draft_logs = F.log_softmax((hidden[rows] @ head.T).float(), -1)
            target_probs, draft_probs = target_logs.exp(), draft_logs.exp()
            total += (target_probs * (target_logs - draft_logs)).sum()
            gradient[rows] = (draft_probs - target_probs).to(head.dtype) @ head
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        [gradient] = ctx.saved_tensors
        return gradient * grad_output.to(gradient.dtype), None, None


def learn(
    draft: nn.Module, batches: Sequence[Batch], head: Tensor, seconds: float, rate: float
) -> dict[str, float]:
    """Train for so many seconds, at a rate that falls to 0 by then."""
    parameters = [parameter for parameter in draft.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    order = random.Random(0)
    began, step, seen, losses = time.monotonic(), 0, 0, []
    queue: list[Batch] = []
    while (done := (time.monotonic() - began) / seconds) < 1:
        queue = queue or order.sample(batches, len(batches))
        batch = queue.pop()
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / WARM_UP) * (1 + math.cos(math.pi * done)) / 2
        with torch.autocast(batch.ids.device.type, torch.bfloat16):
            hidden = states_of(draft, batch)
        loss = Distillation.apply(hidden.to(head.dtype), batch.states, head) / len(batch.places)
        update(loss, parameters, optimizer)
        step, seen = step + 1, seen + len(batch.places)
        losses.append(loss.detach())
        if step % 500 == 0:
            print(f"step {step}, {seen / 1e6:.1f} M tokens, loss {torch.stack(losses).mean():.4f}", flush=True)
            losses.clear()
    return {"steps": step, "answer tokens learned": seen}


def update(loss: Tensor, parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    optimizer.zero_grad()


@torch.no_grad()
def judge(draft: nn.Module, head: Tensor, batches: Sequence[Batch]) -> dict[str, dict[str, float]]:
    """Means over prompts, by domain and over `all`; a round drafts three tokens greedily."""
    scores: dict[str, list[tuple[float, float, float]]] = {"all": []}
    for batch in batches:
        with torch.autocast(batch.ids.device.type, torch.bfloat16):
            hidden = states_of(draft, batch).to(head.dtype)
        agreed, overlap = [], []
        for start in range(0, len(hidden), CHUNK):
            rows = slice(start, start + CHUNK)
            theirs, mine = (batch.states[rows] @ head.T).float(), (hidden[rows] @ head.T).float()
            agreed.append(theirs.argmax(-1) == mine.argmax(-1))
            overlap.append(torch.minimum(theirs.softmax(-1), mine.softmax(-1)).sum(-1))
        agreement, shared, rows = torch.cat(agreed).cpu(), torch.cat(overlap).cpu(), batch.sample.cpu()
        for row, domain in enumerate(batch.domains):
            of = agreement[rows == row]
            score = (
                of.float().mean().item(),
                shared[rows == row].mean().item(),
                tokens_a_round([of.tolist()] * DRAFTED),
            )
            scores["all"].append(score)
            scores.setdefault(domain, []).append(score)
    return {domain: _means(values) for domain, values in scores.items()}


def tokens_a_round(agreed: Sequence[Sequence[bool]]) -> float:
    """Of greedy rounds that draft a token by each step: step j of one that begins at n drafts position n + j."""
    count, at, rounds = len(agreed[0]), 0, 0
    while at < count:
        taken = 0
        while taken < len(agreed) and at + taken < count and agreed[taken][at + taken]:
            taken += 1
        at, rounds = at + taken + 1, rounds + 1
    return count / rounds


def _means(values: Sequence[tuple[float, float, float]]) -> dict[str, float]:
    columns = torch.tensor(values).mean(0).tolist()
    return {"prompts": len(values), **dict(zip(("agreement", "overlap", "tokens a round"), columns, strict=True))}
