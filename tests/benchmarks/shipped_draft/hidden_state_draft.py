"""A draft of one layer that reads the target's hidden states, trained as it drafts (EAGLE-3, Li et al., 2025)."""

import random
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.benchmarks.shipped_draft.batch_target import rotate
from tests.benchmarks.shipped_draft.batches import Batch
from tests.benchmarks.shipped_draft.distil import Distillation, tokens_a_round, update

STEPS = 3
DECAY = 0.8


class HiddenStateDraft(nn.Module):
    """State n of step 1 is made of the token after n and of the target's states at n; those of later steps of the
    token and the state that the step before made one place earlier."""

    def __init__(self, model: Any, layers: Sequence[int] = (8, 20, 30)) -> None:
        super().__init__()
        config = model.config
        self.layers = tuple(layers)
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        width, size = config.hidden_size, config.hidden_size // config.num_attention_heads
        self.size = size
        self.eps = config.rms_norm_eps
        self.join = nn.Linear(len(self.layers) * width, width, bias=False)
        self.token_norm = nn.Parameter(torch.ones(width))
        self.state_norm = nn.Parameter(torch.ones(width))
        self.q = nn.Linear(2 * width, self.heads * size, bias=False)
        self.k = nn.Linear(2 * width, self.kv_heads * size, bias=False)
        self.v = nn.Linear(2 * width, self.kv_heads * size, bias=False)
        self.o = nn.Linear(self.heads * size, width, bias=False)
        self.mlp_norm = nn.Parameter(torch.ones(width))
        self.gate = nn.Linear(width, config.intermediate_size, bias=False)
        self.up = nn.Linear(width, config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, width, bias=False)
        self.out_norm = nn.Parameter(model.model.norm.weight.detach().float().clone())
        self.register_buffer("embedding", model.model.embed_tokens.weight.detach(), persistent=False)
        self._rotary = [model.model.rotary_emb]

    def forward(self, ids: Tensor, states: Tensor) -> list[Tensor]:
        """Normalised states [B, T - 1, H] of each step: that at n predicts token n + 2."""
        tokens = F.embedding(ids[:, 1:], self.embedding)
        length = tokens.shape[1]
        cos, sin = self._rotary[0](tokens, torch.arange(length, device=ids.device)[None])
        cos, sin = cos[:, None], sin[:, None]
        tokens = F.rms_norm(tokens, tokens.shape[-1:], self.token_norm, self.eps)
        feature = self.join(states[:, :-1])
        places = torch.arange(length, device=ids.device)
        apart = places[:, None] - places[None]  # how far a key lies behind
        made, keys, values = [], [], []
        for step in range(STEPS):
            normed = F.rms_norm(feature, feature.shape[-1:], self.state_norm, self.eps)
            both = torch.cat([tokens, normed], -1)
            q = rotate(self.q(both).unflatten(-1, (self.heads, self.size)).transpose(1, 2), cos, sin)
            k = rotate(self.k(both).unflatten(-1, (self.kv_heads, self.size)).transpose(1, 2), cos, sin)
            v = self.v(both).unflatten(-1, (self.kv_heads, self.size)).transpose(1, 2)
            keys.append(k.repeat_interleave(self.heads // self.kv_heads, 1))
            values.append(v.repeat_interleave(self.heads // self.kv_heads, 1))
            scores = (q @ keys[0].transpose(-1, -2)) / self.size**0.5
            scores = scores.float().masked_fill(apart < step, -torch.inf)
            later = []
            for back in range(step):  # the key that step `step - back` made, `back` places behind
                moved = _behind(keys[step - back], back)
                later.append(((q * moved).sum(-1, keepdim=True) / self.size**0.5).float())
            weights = torch.cat([scores, *later], -1).softmax(-1).to(v.dtype)
            attended = weights[..., :length] @ values[0]
            for back in range(step):
                weight = weights[..., length + back, None]
                attended = attended + weight * _behind(values[step - back], back)
            x = feature + self.o(attended.transpose(1, 2).flatten(2))
            normed = F.rms_norm(x, x.shape[-1:], self.mlp_norm, self.eps)
            x = x + self.down(F.silu(self.gate(normed)) * self.up(normed))
            made.append(F.rms_norm(x, x.shape[-1:], self.out_norm, self.eps))
            feature = F.pad(x[:, :-1], (0, 0, 1, 0))
        return made

    def learn(self, model: Any, head: Tensor, batches: Sequence[Batch], steps: int) -> None:
        """So many steps, each of a part of a batch with about a thousand of its positions."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=8e-4, betas=(0.9, 0.95), weight_decay=0.01)
        order = random.Random(4)
        parts = [part for batch in batches for part in _parts(batch, 1000)]
        queue: list[Any] = []
        for step in range(steps):
            queue = queue or order.sample(parts, len(parts))
            ids, (rows, at) = queue.pop()
            for group in optimizer.param_groups:
                group["lr"] = 8e-4 * min(1.0, (step + 1) / 100) * (1 - step / steps)
            with torch.no_grad():
                states, last = read(model, ids, self.layers)
            with torch.autocast(ids.device.type, torch.bfloat16):
                made = self(ids, states)
            loss = torch.zeros((), device=ids.device)
            theirs = last[rows, at]
            for number, hidden in enumerate(made):
                sums = Distillation.apply(hidden[rows, (at - 1).clamp_min(0)].to(head.dtype), theirs, head)
                loss = loss + DECAY**number * sums / len(at)
            update(loss, list(self.parameters()), optimizer)


def _parts(batch: Batch, positions: int) -> list[tuple[Tensor, tuple[Tensor, Tensor]]]:
    """Of a batch, rows that together have about so many positions, as ids and where these are."""
    width = batch.ids.shape[1]
    count = max(1, round(len(batch.places) / positions))
    size = -(-len(batch.ids) // count)
    parts = []
    for first in range(0, len(batch.ids), size):
        mask = (batch.sample >= first) & (batch.sample < first + size)
        parts.append((batch.ids[first : first + size], (batch.sample[mask] - first, batch.places[mask] % width)))
    return parts


def read(model: Any, ids: Tensor, layers: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The target's states behind `layers`, side by side [B, T, n x H], and its last ones, normalised."""
    output = model.model(input_ids=ids, use_cache=False, output_hidden_states=True)
    caught = list(output.hidden_states)
    return torch.cat([caught[layer] for layer in layers], -1), output.last_hidden_state


@torch.no_grad()
def lengths_at_three(
    draft: HiddenStateDraft, model: Any, head: Tensor, batches: Sequence[Batch]
) -> dict[str, float]:
    """Agreement of each step with the target's greedy tokens, and tokens of a round that drafts three."""
    lengths: list[float] = []
    agreed_by_step: list[list[float]] = [[] for _ in range(STEPS)]
    for batch in batches:
        for ids, (rows, at) in _parts(batch, 4000):
            states, last = read(model, ids, draft.layers)
            with torch.autocast(ids.device.type, torch.bfloat16):
                made = draft(ids, states)
            best = (last[rows, at] @ head.T).argmax(-1)
            states_before = [hidden[rows, (at - 1).clamp_min(0)].to(head.dtype) for hidden in made]
            agreed = torch.stack([(state @ head.T).argmax(-1) == best for state in states_before]).cpu()
            where = rows.cpu()
            for row in range(len(ids)):
                of = agreed[:, where == row].tolist()
                lengths.append(tokens_a_round(of))
                for step in range(STEPS):
                    agreed_by_step[step].append(sum(of[step][step:]) / max(1, len(of[step]) - step))
    found = {"tokens a round": sum(lengths) / len(lengths)}
    for step, values in enumerate(agreed_by_step):
        found[f"agreement at step {step + 1}"] = sum(values) / len(values)
    return found


def _behind(x: Tensor, places: int) -> Tensor:
    return F.pad(x[:, :, : x.shape[2] - places], (0, 0, places, 0)) if places else x
