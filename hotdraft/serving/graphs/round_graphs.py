"""The graphs of rounds, recorded before the first request: one that is recorded in a round holds it up."""

import logging
import time
from dataclasses import dataclass

import torch

from hotdraft.serving.graphs.draft_chain import DraftChain
from hotdraft.serving.graphs.graphed_runner import GraphedRunner
from hotdraft.serving.graphs.padding import EXACT_TOKENS, MOST_TOKENS, Padding
from hotdraft.serving.models.runner import Window
from hotdraft.serving.models.trimmed_head import vocabulary_of

logger = logging.getLogger(__name__)

MOST_KEYS = 1024
"""Rounds of longer requests are recorded as they come."""
MOST_READ = 512
"""Tokens of all rows; likewise what reads more, but for a whole draft."""


@dataclass(frozen=True)
class Drafting:
    """What drafts `max_k` tokens at most."""

    runner: GraphedRunner
    chain: DraftChain
    padding: Padding
    max_k: int


@dataclass(frozen=True)
class RoundGraphs:
    """Of a target that reads up to `most_read` tokens of each row in a round."""

    target: GraphedRunner
    padding: Padding
    most_read: int
    drafting: Drafting | None
    device: torch.device

    @torch.inference_mode()
    def record(self) -> None:
        """Those of forwards and of greedy drafts that are not yet; only while no slot is used or holds anything."""
        began = time.perf_counter()
        rounds = self.padding.every(self.padding.tokens, self.most_read)
        for key_length in self._key_lengths(self.padding):
            self._record_prompts(self.target, self.padding, key_length)
            for rows in self.padding.every(self.padding.rows, self.padding.num_slots):
                for tokens in rounds:
                    if rows * tokens <= MOST_READ or tokens <= self._most_drafted:
                        self._record(self.target, rows, tokens, tokens, key_length)
        if self.drafting is not None:
            self._record_drafting(self.drafting)
        logger.info("recorded the graphs of rounds in %.0f s", time.perf_counter() - began)

    def _record_drafting(self, drafting: Drafting) -> None:
        vocabulary = vocabulary_of(drafting.runner.head)
        for key_length in self._key_lengths(drafting.padding):
            self._record_prompts(drafting.runner, drafting.padding, key_length)
            for rows in drafting.padding.every(drafting.padding.rows, drafting.padding.num_slots):
                for tokens in (1, 2, drafting.chain.missed(1)):
                    self._record(drafting.runner, rows, tokens, 1, key_length)
                for k in range(1, drafting.max_k + 1):
                    drafting.chain.record(rows, key_length, k, vocabulary, self.device)

    def _record_prompts(self, runner: GraphedRunner, padding: Padding, key_length: int) -> None:
        """Several together are short."""
        most = padding.num_slots if key_length == padding.key_length(1) else 1
        for rows in padding.every(padding.rows, most):
            for tokens in padding.every(padding.tokens, MOST_TOKENS):
                if tokens > EXACT_TOKENS and rows * tokens <= MOST_READ:
                    self._record(runner, rows, tokens, 1, key_length)

    def _record(self, runner: GraphedRunner, rows: int, tokens: int, keep: int, key_length: int) -> None:
        if tokens > key_length:
            return
        ids = torch.zeros(rows, tokens, dtype=torch.int64, device=self.device)
        positions = torch.arange(tokens, device=self.device).expand(rows, tokens)
        runner.record(Window(slice(0, rows), positions, key_length), ids, keep)

    @property
    def _most_drafted(self) -> int:
        """Tokens that a round reads that drafts as many as may be."""
        return 1 if self.drafting is None else self.padding.tokens(1 + self.drafting.max_k)

    @staticmethod
    def _key_lengths(padding: Padding) -> list[int]:
        return padding.every(padding.key_length, min(MOST_KEYS, padding.max_length))
