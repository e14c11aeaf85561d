"""The speculative decoder: slots of tokens, two models, and the round that advances them.

A slot's row holds its committed tokens x[0..n-1]. Between rounds the target's cache covers
x[0..n-2] and the draft's at least x[0..n-3], so a round feeds the target the last token and the
draft the last two: a fully accepted round then needs no extra draft pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from pipeline.records import NOT_DRAFTED
from serving.attention import causal_mask, check_supported, groups_of
from serving.kv_cache import SlotCache, Window
from serving.logits import SamplingBatch, process_logits, sample
from serving.noise import Stream, uniform
from serving.rejection import rejection_sample

KEY_BLOCK = 64
"""Attention reads whole blocks of keys, so that shapes recur."""
MIN_LOG_MASS = -30.0


@dataclass(frozen=True)
class TargetLog:
    """The target's distribution at T output positions (temperature 1, unfiltered)."""

    top_ids: np.ndarray
    """int32 [B, T, K]."""
    top_logprobs: np.ndarray
    """float16 [B, T, K]."""
    tail_logprob: np.ndarray
    """float32 [B, T]: log of the mass outside the K tokens."""


@dataclass(frozen=True)
class Round:
    """What one round did to B rows, on the host. Row b's new tokens are `token_ids[b, :num_accepted[b] + 1]`."""

    token_ids: np.ndarray
    """int64 [B, k+1]."""
    num_accepted: np.ndarray
    """int64 [B]."""
    drafted_ids: np.ndarray
    """int32 [B, k+1]; the last column is `NOT_DRAFTED`."""
    target_log: TargetLog | None


class Track:
    """One model with its slots."""

    def __init__(self, model: PreTrainedModel, num_slots: int, max_length: int) -> None:
        config = model.config.get_text_config()
        check_supported(config)
        self.model = model
        self.groups = groups_of(config)
        self.cache = SlotCache(config.num_hidden_layers, num_slots, max_length)
        self.lengths = [0] * num_slots
        """Positions of each slot that the cache holds keys for."""

    def forward(
        self, rows: slice, token_ids: torch.Tensor, positions: torch.Tensor, key_length: int, keep: int
    ) -> torch.Tensor:
        """Logits [B, keep, V] of the last `keep` of token_ids [B, Q] at positions [B, Q]."""
        self.cache.open(Window(rows, positions, key_length))
        return self.model(
            input_ids=token_ids,
            attention_mask=causal_mask(positions, key_length, self.groups),
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=keep,
        ).logits


class SpeculativeDecoder:
    """Decodes the first B of `num_slots` rows together; k = 0 is plain decoding by the same code.

    The rows in use are kept at the front by `move`. Temperature, filters and seeds come with each
    round. With `draft=None` only k = 0 is possible.
    """

    def __init__(
        self,
        target: PreTrainedModel,
        draft: PreTrainedModel | None,
        *,
        num_slots: int,
        max_model_len: int,
        max_k: int,
        log_top_k: int,
    ) -> None:
        self.max_length = -(-(max_model_len + max_k + 1) // KEY_BLOCK) * KEY_BLOCK
        self.device = target.device
        self.target = Track(target, num_slots, self.max_length)
        self.draft = Track(draft, num_slots, self.max_length) if draft is not None else None
        self.tokens = torch.zeros(num_slots, self.max_length, dtype=torch.int64, device=self.device)
        self.lengths = [0] * num_slots
        self.log_top_k = log_top_k
        models = [target] if draft is None else [target, draft]
        self.vocab_size = min(model.config.get_text_config().vocab_size for model in models)

    def load(self, row: int, prompt_ids: Sequence[int]) -> None:
        """Start a request in a slot; `prefill` must follow before it joins a round."""
        self.tokens[row, : len(prompt_ids)] = torch.tensor(prompt_ids, device=self.device)
        self.lengths[row] = len(prompt_ids)
        for track in self._tracks():
            track.lengths[row] = 0

    @torch.inference_mode()
    def prefill(self, row: int, budget: int, *, with_draft: bool) -> bool:
        """Process up to `budget` prompt tokens of a row; True once it may join a round."""
        goals = [(self.target, self.lengths[row] - 1)]
        if with_draft and self.draft is not None:
            goals.append((self.draft, self.lengths[row] - 2))
        for track, until in goals:
            if track.lengths[row] < until:
                self._advance(track, row, until, budget)
                break
        return all(track.lengths[row] >= until for track, until in goals)

    @torch.inference_mode()
    def move(self, source: int, destination: int) -> None:
        """Copy a slot over another, which is lost."""
        length = self.lengths[source]
        self.tokens[destination, :length] = self.tokens[source, :length]
        self.lengths[destination] = length
        for track in self._tracks():
            track.cache.move(source, destination, length)
            track.lengths[destination] = track.lengths[source]

    @torch.inference_mode()
    def round(self, rows: int, k: int, sampling: SamplingBatch, *, log: bool) -> Round:
        """Draft k tokens, verify them in one target forward, commit 1..k+1 tokens in each of the first rows."""
        assert k == 0 or self.draft is not None, "drafting needs a draft"
        assert max(self.lengths[:rows]) + k < self.max_length, "a round's tokens fit their slots"
        lengths = torch.tensor(self.lengths[:rows], device=self.device)[:, None]
        key_length = self._key_length(max(self.lengths[:rows]) + k)
        draft_ids, draft_probs = self._draft(rows, k, lengths, key_length, sampling)

        last = self.tokens[:rows].gather(1, lengths - 1)
        positions = lengths - 1 + torch.arange(k + 1, device=self.device)
        fed = torch.cat([last, draft_ids], 1)
        logits = self.target.forward(slice(0, rows), fed, positions, key_length, k + 1)
        logits = logits[..., : self.vocab_size].float()
        seeds, drawn_at = sampling.seeds[:, None], positions + 1
        verification = rejection_sample(
            process_logits(logits, sampling),
            draft_probs,
            draft_ids,
            uniform(seeds, drawn_at[:, :k], Stream.ACCEPT),
            uniform(seeds, drawn_at, Stream.RECOVER),
        )

        accepted = verification.num_accepted[:, None]
        is_drafted = torch.arange(k + 1, device=self.device) < accepted
        padded = torch.cat([draft_ids, verification.next_token[:, None]], 1)
        token_ids = torch.where(is_drafted, padded, verification.next_token[:, None])
        self.tokens[:rows].scatter_(1, drawn_at, token_ids)

        outcome = Round(
            token_ids=token_ids.cpu().numpy(),
            num_accepted=verification.num_accepted.cpu().numpy(),
            drafted_ids=np.pad(
                draft_ids.to(torch.int32).cpu().numpy(), ((0, 0), (0, 1)), constant_values=NOT_DRAFTED
            ),
            target_log=self._target_log(logits) if log else None,
        )
        for row, count in enumerate(outcome.num_accepted.tolist()):
            if k > 0 and self.draft is not None:
                self.draft.lengths[row] = self.lengths[row] + min(count, k - 1)
            self.target.lengths[row] = self.lengths[row] + count
            self.lengths[row] += count + 1
        return outcome

    def _draft(
        self, rows: int, k: int, lengths: torch.Tensor, key_length: int, sampling: SamplingBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Drafted ids [B, k] and the probabilities [B, k, V] they were drawn from."""
        ids: list[torch.Tensor] = []
        probs: list[torch.Tensor] = []
        for step in range(k):
            assert self.draft is not None
            if step == 0:
                for row in range(rows):  # rounds with k = 0 leave the draft's cache behind
                    self._advance(self.draft, row, self.lengths[row] - 2, self.max_length)
                # a one-token prompt feeds its token twice, at the same position
                positions = (lengths - 2 + torch.arange(2, device=self.device)).clamp_min(0)
                fed = self.tokens[:rows].gather(1, positions)
            else:
                positions = lengths - 1 + step
                fed = ids[-1]
            logits = self.draft.forward(slice(0, rows), fed, positions, key_length, 1)
            step_probs = process_logits(logits[..., : self.vocab_size], sampling)
            noise = uniform(sampling.seeds[:, None], lengths + step, Stream.DRAFT)
            ids.append(sample(step_probs, noise))
            probs.append(step_probs)
        if k == 0:
            return lengths.new_zeros(rows, 0), torch.zeros(rows, 0, self.vocab_size, device=self.device)
        return torch.cat(ids, 1), torch.cat(probs, 1)

    def _advance(self, track: Track, row: int, until: int, budget: int) -> None:
        """Feed a row's committed tokens to a model until its cache holds `until` positions."""
        start = track.lengths[row]
        end = min(until, start + budget)
        if start >= end:
            return
        positions = torch.arange(start, end, device=self.device)[None]
        fed = self.tokens[row : row + 1, start:end]
        track.forward(slice(row, row + 1), fed, positions, self._key_length(end), 1)
        track.lengths[row] = end

    def _key_length(self, length: int) -> int:
        return min(-(-length // KEY_BLOCK) * KEY_BLOCK, self.max_length)

    def _target_log(self, logits: torch.Tensor) -> TargetLog:
        top = logits.topk(min(self.log_top_k, logits.shape[-1]), dim=-1)
        logprobs = top.values - logits.logsumexp(-1, keepdim=True)
        tail = 1 - logprobs.double().exp().sum(-1)
        return TargetLog(
            top_ids=top.indices.to(torch.int32).cpu().numpy(),
            top_logprobs=logprobs.half().cpu().numpy(),
            tail_logprob=tail.clamp_min(0).log().clamp_min(MIN_LOG_MASS).float().cpu().numpy(),
        )

    def _tracks(self) -> list[Track]:
        return [self.target] if self.draft is None else [self.target, self.draft]
