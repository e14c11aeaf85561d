"""A small Llama that answers thousands of prompts at once on one device: each step is one CUDA graph."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PREFILL_ROWS = 256
CHECK_EVERY = 16


class BatchTarget:
    def __init__(self, model: Any, rows: int) -> None:
        config = model.config
        self.rows = rows
        self.end = int(config.eos_token_id)
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._size = config.hidden_size // self._heads
        self._eps = config.rms_norm_eps
        self._embedding, self._norm = model.model.embed_tokens.weight, model.model.norm.weight
        self._head = model.lm_head.weight
        self.device = self._embedding.device
        self._layers = [self._weights(layer) for layer in model.model.layers]
        positions = torch.arange(4096, device=self.device)[None]
        cos, sin = model.model.rotary_emb(self._embedding[None, :1], positions)
        self._cos, self._sin = cos[0], sin[0]
        self._graph: _Graph | None = None

    @staticmethod
    def _weights(layer: nn.Module) -> tuple[Tensor, ...]:
        attention, mlp = layer.self_attn, layer.mlp
        qkv = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]).detach()
        gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]).detach()
        norms = layer.input_layernorm.weight.detach(), layer.post_attention_layernorm.weight.detach()
        return norms[0], qkv, attention.o_proj.weight.detach(), norms[1], gate_up, mlp.down_proj.weight.detach()

    def forget(self) -> None:
        self._graph = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    @torch.no_grad()
    def answers(self, prompts: Sequence[list[int]], temperatures: Sequence[float], most: int) -> list[list[int]]:
        """Tokens up to and with the end, or `most`; one prompt a row."""
        longest = max(map(len, prompts))
        room = -(-(longest + most) // 64) * 64
        rows = self.rows
        if self._graph is None or self._graph.room != room:
            self._graph = None  # whose room the next one needs
            self._graph = _Graph(self, rows, room)
        graph = self._graph
        lengths = torch.tensor([len(ids) for ids in prompts] + [1] * (rows - len(prompts)), device=self.device)
        padded = torch.zeros(rows, longest, dtype=torch.long)
        for row, ids in enumerate(prompts):
            padded[row, : len(ids)] = torch.tensor(ids)
        padded = padded.to(self.device)
        heat = torch.tensor([*temperatures, *[0.0] * (rows - len(prompts))], device=self.device)
        ending = torch.arange(rows, device=self.device) >= len(prompts)
        last = torch.cat(
            [
                self._prefill(padded[at : at + PREFILL_ROWS], lengths[at : at + PREFILL_ROWS], graph, at)
                for at in range(0, rows, PREFILL_ROWS)
            ]
        )
        first = self.choose(last, heat)
        said = graph.run(first, lengths, heat, ending, most)
        return [_until(row, self.end) for row in said[:, : len(prompts)].T.tolist()]

    def _prefill(self, ids: Tensor, lengths: Tensor, graph: "_Graph", first: int) -> Tensor:
        rows, width = ids.shape
        x = F.embedding(ids, self._embedding)
        cos, sin = self._cos[:width], self._sin[:width]
        for (norm, qkv, out, norm2, gate_up, down), (keys, values) in zip(self._layers, graph.caches, strict=True):
            q, k, v = self._split(F.rms_norm(x, x.shape[-1:], norm, self._eps) @ qkv.T)
            q, k, v = (each.transpose(1, 2) for each in (q, k, v))
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            keys[first : first + rows, :, :width] = k
            values[first : first + rows, :, :width] = v
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = self._feed_forward(x + attended.transpose(1, 2).flatten(2) @ out.T, norm2, gate_up, down)
        return x[torch.arange(rows, device=x.device), lengths - 1]

    def _split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shaped = qkv.unflatten(-1, (-1, self._size))
        q, k, v = shaped.split([self._heads, self._kv_heads, self._kv_heads], -2)
        return q, k, v

    def _feed_forward(self, x: Tensor, norm: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        gate, up = (F.rms_norm(x, x.shape[-1:], norm, self._eps) @ gate_up.T).chunk(2, -1)
        return x + (F.silu(gate) * up) @ down.T

    def step(self, ids: Tensor, positions: Tensor, caches: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """The last states [B, H] of one token a row, whose keys come to `positions`."""
        x = F.embedding(ids, self._embedding)
        room = caches[0][0].shape[2]
        rows = torch.arange(len(ids), device=ids.device)
        seen = (torch.arange(room, device=ids.device)[None] <= positions[:, None])[:, None, None]
        bias = torch.zeros(seen.shape, dtype=x.dtype, device=x.device).masked_fill_(~seen, -torch.inf)
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        for (norm, qkv, out, norm2, gate_up, down), (keys, values) in zip(self._layers, caches, strict=True):
            q, k, v = self._split(F.rms_norm(x, x.shape[-1:], norm, self._eps) @ qkv.T)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            keys[rows, :, positions] = k
            values[rows, :, positions] = v
            grouped = q.unflatten(1, (self._kv_heads, -1))
            attended = F.scaled_dot_product_attention(
                grouped, keys, values, attn_mask=bias.expand(-1, self._kv_heads, grouped.shape[2], -1)
            )
            x = self._feed_forward(x + attended.flatten(1) @ out.T, norm2, gate_up, down)
        return x

    def choose(self, last: Tensor, heat: Tensor) -> Tensor:
        """Token ids [B]: the likeliest, or drawn by adding Gumbel noise where a row has a temperature."""
        logits = (F.rms_norm(last, last.shape[-1:], self._norm, self._eps) @ self._head.T).float()
        noise = torch.rand_like(logits).clamp_(1e-20).log_().neg_().log_().neg_()
        return torch.add(logits, noise * heat[:, None]).argmax(-1)


class _Graph:
    """Caches for so many rows and keys, and a step over them."""

    def __init__(self, target: BatchTarget, rows: int, room: int) -> None:
        self._target, self.room = target, room
        device, size = target.device, target._size
        shape = (rows, target._kv_heads, room, size)
        self.caches = [
            (
                torch.zeros(shape, dtype=torch.bfloat16, device=device),
                torch.zeros(shape, dtype=torch.bfloat16, device=device),
            )
            for _ in target._layers
        ]
        self._ids = torch.zeros(rows, dtype=torch.long, device=device)
        self._positions = torch.zeros(rows, dtype=torch.long, device=device)
        self._heat = torch.zeros(rows, device=device)
        self._ended = torch.zeros(rows, dtype=torch.bool, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None

    def run(self, first: Tensor, lengths: Tensor, heat: Tensor, ended: Tensor, most: int) -> Tensor:
        self._ids.copy_(first)
        self._positions.copy_(lengths)
        self._heat.copy_(heat)
        self._ended.copy_(ended | (first == self._target.end))
        said = [first.clone()]
        for number in range(1, most):
            if number % CHECK_EVERY == 0 and bool(self._ended.all()):
                break
            self._advance()
            said.append(self._ids.clone())
        return torch.stack(said)

    def _advance(self) -> None:
        if self._ids.device.type != "cuda":
            self._work()
            return
        if self._graph is None:
            kept = [each.clone() for each in (self._ids, self._positions, self._ended)]
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._work()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._work()
            self._graph = graph
            for each, was in zip((self._ids, self._positions, self._ended), kept, strict=True):
                each.copy_(was)
        self._graph.replay()

    def _work(self) -> None:
        target = self._target
        chosen = target.choose(target.step(self._ids, self._positions, self.caches), self._heat)
        self._ids.copy_(torch.where(self._ended, target.end, chosen))
        self._ended |= self._ids == target.end
        self._positions += (~self._ended).long()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def _until(row: list[int], end: int) -> list[int]:
    return row[: row.index(end) + 1] if end in row else row
