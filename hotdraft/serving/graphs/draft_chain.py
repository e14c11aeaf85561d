"""Greedy draft steps as one graph: a step's forward is so short that the host, between two, takes longer."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hotdraft.serving.graphs.graphed_function import GraphedFunction
from hotdraft.serving.graphs.graphs import Graphs
from hotdraft.serving.graphs.padding import EXACT_TOKENS, Padding
from hotdraft.serving.graphs.recurring import GraphCounts
from hotdraft.serving.messages.request import SamplingParams
from hotdraft.serving.models.runner import Runner, Window
from hotdraft.serving.sampling.draw import draw
from hotdraft.serving.sampling.logits import SamplingBatch

GREEDY = SamplingParams(temperature=0)


class DraftChain:
    """Steps of `runner`, which has no graphs of its own; rows and keys come as `padding` has them."""

    def __init__(self, runner: Runner, graphs: Graphs, padding: Padding, vocab_size: int) -> None:
        self._runner = runner
        self._padding = padding
        self._vocab_size = vocab_size
        self._steps = GraphedFunction(self._draft, graphs)
        self._greedy: dict[int, SamplingBatch] = {}
        """By rows."""

    @property
    def counts(self) -> GraphCounts:
        return self._steps.counts

    def missed(self, tokens: int) -> int:
        """How many are read ahead of the steps where so many were missed; some once more, for fewer graphs."""
        return self._padding.tokens(max(tokens, EXACT_TOKENS + 1)) if tokens else 0

    def record(self, rows: int, key_length: int, k: int, vocabulary: Tensor | None, device: torch.device) -> None:
        """Ahead of the first draft of such a shape, whose slots nobody may use yet."""
        ends = torch.full((rows, 1), 2, device=device)
        positions = torch.arange(2, device=device).expand(rows, 2)
        self._steps.record(*self._padded(positions, positions, ends, vocabulary, key_length, k))

    def draft(
        self, token_ids: Tensor, positions: Tensor, ends: Tensor, vocabulary: Tensor | None, key_length: int, k: int
    ) -> tuple[Tensor, Tensor]:
        """The likeliest k tokens [B, k] of the first B rows, and whether their logits were sound, bool [B, 1].

        token_ids and positions int64 [B, 2] are what the first step reads, ends [B, 1] where drafted tokens go.
        With a `vocabulary` [N] the head is of these tokens only.
        """
        drafted, sound = self._steps(*self._padded(token_ids, positions, ends, vocabulary, key_length, k))
        return drafted[: len(token_ids)], sound[: len(token_ids)]

    def _padded(
        self, token_ids: Tensor, positions: Tensor, ends: Tensor, vocabulary: Tensor | None, key_length: int, k: int
    ) -> tuple[Any, ...]:
        """What `_draft` is called with."""
        rows, last = len(token_ids), self._padding.last
        padded = self._padding.rows(rows)
        if padded not in self._greedy:
            self._greedy[padded] = SamplingBatch.of([GREEDY] * padded, range(padded), ends.device)
        if padded > rows:
            below = (0, 0, 0, padded - rows)
            token_ids = F.pad(token_ids, below)
            positions, ends = (F.pad(part, below, value=last) for part in (positions, ends))
        key_length = self._padding.key_length(key_length)
        return token_ids, positions, ends, self._greedy[padded], vocabulary, key_length, k

    def _draft(
        self,
        token_ids: Tensor,
        positions: Tensor,
        ends: Tensor,
        greedy: SamplingBatch,
        vocabulary: Tensor | None,
        key_length: int,
        k: int,
    ) -> tuple[Tensor, Tensor]:
        steps = []
        for step in range(k):
            window = Window(slice(0, len(token_ids)), positions, key_length)
            logits = self._runner.forward(window, token_ids, 1)
            positions = (ends + step).clamp_max(self._padding.last)
            steps.append(draw(logits, positions, greedy.seeds[:, None], greedy, None, vocabulary, self._vocab_size))
            token_ids = steps[-1].token_ids
        sound = torch.cat([step.sound for step in steps], 1)
        return torch.cat([step.token_ids for step in steps], 1), sound.all(1, keepdim=True)
