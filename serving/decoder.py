"""The speculative decoder: slots of tokens, two models, and the round that advances them.

A slot's row holds its committed tokens x[0..n-1]. Between rounds the target's cache covers
x[0..n-2] and the draft's at least x[0..n-3], so a round feeds the target the last token and the
draft the last two: a fully accepted round then needs no extra draft pass. After rounds that drafted
nothing the draft is behind, and its first step is fed what it missed as well.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from serving.build import make_runners
from serving.logits import SamplingBatch, process_logits, sample
from serving.noise import Stream, uniform
from serving.penalties import count_drafted, count_tokens, penalise
from serving.rejection import match_greedy, rejection_sample
from serving.rounds import Proposal, Round
from serving.runner import Runner, Window
from serving.target_log import TargetLog, pack, unpack
from serving.trimmed_head import TrimmedHead

KEY_BLOCK = 64
"""Attention reads whole blocks of keys, so that shapes recur."""
MIN_SHARED = 16
"""Tokens of a common beginning from which on it is copied instead of read again."""
MAX_MISSED = 32
"""Tokens that the draft's first step reads at most beside its own two."""


class Track:
    """One model and how far it has read each slot."""

    def __init__(self, runner: Runner, num_slots: int) -> None:
        self.runner = runner
        self.lengths = [0] * num_slots
        """Positions of each slot that the runner holds keys for."""
        self.token_ids = runner.head.token_ids if isinstance(runner.head, TrimmedHead) else None
        """The tokens of the head, if it is not the whole vocabulary."""


class SpeculativeDecoder:
    """Decodes the first B of `num_slots` rows together; k = 0 is plain decoding by the same code.

    The rows in use are kept at the front by `move`. Temperature, filters and seeds come with each
    round. With `draft=None` only k = 0 is possible. The models are taken over: their weights may be
    stored in another form. With `draft_vocabulary` [N] the draft proposes only these token ids.
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
        draft_vocabulary: Tensor | None = None,
        reuse_prefixes: bool = True,
    ) -> None:
        self.max_length = -(-(max_model_len + max_k + 1) // KEY_BLOCK) * KEY_BLOCK
        self.device = target.device
        self.max_k = max_k if draft is not None else 0
        models = [target] if draft is None else [target, draft]
        self.vocab_size = min(model.config.get_text_config().vocab_size for model in models)
        self._spare_slot = num_slots
        runner, draft_runner = make_runners(target, draft, draft_vocabulary, num_slots, self.max_length)
        self.target = Track(runner, num_slots)
        self.draft = None if draft_runner is None else Track(draft_runner, num_slots)
        self.tokens = torch.zeros(num_slots, self.max_length, dtype=torch.int64, device=self.device)
        self.lengths = [0] * num_slots
        self._prompt_lengths = [0] * num_slots
        self._device_lengths = torch.zeros(num_slots, 1, dtype=torch.int64, device=self.device)
        self.log_top_k = log_top_k
        self._reuse_prefixes = reuse_prefixes
        self._host_tokens = np.zeros((num_slots, self.max_length), np.int32)

    @torch.inference_mode()
    def load(self, row: int, prompt_ids: Sequence[int], *, read_whole: bool = False) -> None:
        """Start a request in a slot; `prefill` must follow before it joins a round.

        What some slot, in use or not, has read already of the same tokens is copied, unless the target is
        to `read_whole` the prompt.
        """
        length = len(prompt_ids)
        prompt = np.asarray(prompt_ids, np.int32)
        same = (self._host_tokens[:, :length] == prompt).cumprod(1).sum(1)
        for track, needed in zip(self._tracks(), (length - 1, length - 2), strict=False):
            shared = np.minimum(np.minimum(same, track.lengths), needed)
            source = int(shared.argmax())
            reused = 0 if read_whole and track is self.target else int(shared[source])
            track.lengths[row] = self._reuse(track, source, row, reused)
        self._host_tokens[row, :length] = prompt
        self.tokens[row, :length] = torch.from_numpy(prompt).to(self.device, torch.int64)
        self.lengths[row] = self._prompt_lengths[row] = length
        self._device_lengths[row] = length

    def _reuse(self, track: Track, source: int, row: int, length: int) -> int:
        if length < MIN_SHARED or not self._reuse_prefixes:
            return 0
        if source != row:
            track.runner.move(source, row, length)
        return length

    @torch.inference_mode()
    def prefill(
        self, row: int, budget: int, *, with_draft: bool, prompt_log: list[TargetLog] | None = None
    ) -> bool:
        """Process up to `budget` prompt tokens of a row with each model; True once it may join a round.

        What the target thought of the tokens that follow those it read is added to `prompt_log`.
        """
        goals = [(self.target, self.lengths[row] - 1)]
        if with_draft and self.draft is not None:
            goals.append((self.draft, self.lengths[row] - 2))
        for track, until in goals:
            self._advance(track, row, until, budget, prompt_log if track is self.target else None)
        return all(track.lengths[row] >= until for track, until in goals)

    def rewind(self, row: int, length: int) -> None:
        """Forget a slot's tokens from `length` on."""
        self.lengths[row] = length
        self._device_lengths[row] = length
        for track in self._tracks():
            track.lengths[row] = min(track.lengths[row], length - 1)

    @torch.inference_mode()
    def move(self, source: int, destination: int) -> None:
        """Copy a slot over another, which is lost."""
        length = self.lengths[source]
        self.tokens[destination, :length] = self.tokens[source, :length]
        self._host_tokens[destination] = self._host_tokens[source]
        self.lengths[destination] = length
        self._prompt_lengths[destination] = self._prompt_lengths[source]
        self._device_lengths[destination] = length
        for track in self._tracks():
            track.runner.move(source, destination, length)
            track.lengths[destination] = track.lengths[source]

    @torch.inference_mode()
    def round(self, rows: int, k: int, sampling: SamplingBatch, *, log: bool) -> Round:
        """Draft k tokens, verify them in one target forward, commit 1..k+1 tokens in each of the first rows.

        The target's distributions are brought along with `log`, or where a request asks for log-probs.
        """
        assert max(self.lengths[:rows]) + k < self.max_length, "a round's tokens fit their slots"
        proposal = self.propose(rows, k, sampling)
        outcome = self._verify(rows, k, proposal, sampling, log)
        for row, count in enumerate(outcome.num_accepted.tolist()):
            if k > 0 and self.draft is not None:
                self.draft.lengths[row] = self.lengths[row] + min(count, k - 1)
            start = self.lengths[row]
            self._host_tokens[row, start : start + count + 1] = outcome.token_ids[row, : count + 1]
            self.target.lengths[row] = start + count
            self.lengths[row] = start + count + 1
        return outcome

    @torch.inference_mode()
    def propose(self, rows: int, k: int, sampling: SamplingBatch) -> Proposal:
        """Let the draft propose k tokens for each of the first rows; commits nothing."""
        lengths = self._device_lengths[:rows]
        if k == 0:
            nothing = torch.zeros(rows, 0, self.vocab_size, device=self.device)
            return Proposal(lengths.new_zeros(rows, 0), nothing if sampling.any_sampled else None)
        assert self.draft is not None, "drafting needs a draft"
        missed = self._catch_up(rows)
        key_length = self._key_length(max(self.lengths[:rows]) + k)
        # a prompt shorter than what is fed has its first token fed more than once, at the same position
        positions = (lengths + torch.arange(-2 - missed, 0, device=self.device)).clamp_min(0)
        fed = self.tokens[:rows].gather(1, positions)
        ids: list[Tensor] = []
        probs: list[Tensor] = []
        counts = self._count_answered(rows) if sampling.any_penalised else None
        for step in range(k):
            logits = self.draft.runner.forward(Window(slice(0, rows), positions, key_length), fed, 1)
            fed, step_probs = self._draw(logits, lengths + step, sampling, counts)
            positions = lengths + step
            ids.append(fed)
            if counts is not None:
                counts.scatter_add_(1, fed, torch.ones_like(fed, dtype=counts.dtype))
            probs += [] if step_probs is None else [step_probs]
        return Proposal(torch.cat(ids, 1), torch.cat(probs, 1) if probs else None)

    @torch.inference_mode()
    def draft_logits(self, token_ids: Tensor, keep: int) -> Tensor:
        """The draft's logits [keep, N] after the last `keep` of token_ids [1, T]; touches no request."""
        assert self.draft is not None
        spare = slice(self._spare_slot, self._spare_slot + 1)
        positions = torch.arange(token_ids.shape[1], device=self.device)[None]
        window = Window(spare, positions, self._key_length(token_ids.shape[1]))
        return self.draft.runner.forward(window, token_ids, keep)[0]

    def _draw(
        self, logits: Tensor, position: Tensor, sampling: SamplingBatch, counts: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Drafted ids [B, 1] and their distribution [B, 1, V], None if greedy, from logits [B, 1, N].

        They are penalised by the `counts` [B, V] of answered tokens, if there are any.
        """
        assert self.draft is not None
        vocabulary = self.draft.token_ids
        logits = logits.float() if vocabulary is not None else logits[..., : self.vocab_size].float()
        if counts is not None:
            known = counts if vocabulary is None else counts[:, vocabulary]
            logits = penalise(logits, known[:, None], sampling)
        if not sampling.any_sampled:
            chosen = logits.argmax(-1)
            return (chosen if vocabulary is None else vocabulary[chosen]), None
        probs = process_logits(logits, sampling)
        chosen = sample(probs, uniform(sampling.seeds[:, None], position, Stream.DRAFT))
        if vocabulary is None:
            return chosen, probs
        everywhere = probs.new_zeros(*probs.shape[:2], self.vocab_size).index_copy_(-1, vocabulary, probs)
        return vocabulary[chosen], everywhere

    def _verify(self, rows: int, k: int, proposal: Proposal, sampling: SamplingBatch, log: bool) -> Round:
        lengths = self._device_lengths[:rows]
        drawn_at = lengths + torch.arange(k + 1, device=self.device)
        positions = drawn_at - 1
        fed = torch.cat([self.tokens[:rows].gather(1, lengths - 1), proposal.token_ids], 1)
        window = Window(slice(0, rows), positions, self._key_length(max(self.lengths[:rows]) + k))
        logits = self.target.runner.forward(window, fed, k + 1)[..., : self.vocab_size].float()
        penalised = logits
        if sampling.any_penalised:
            counts = count_drafted(self._count_answered(rows), proposal.token_ids)
            penalised = penalise(logits, counts, sampling)
        if proposal.probs is None:
            verification = match_greedy(penalised.argmax(-1), proposal.token_ids)
        else:
            seeds = sampling.seeds[:, None]
            verification = rejection_sample(
                process_logits(penalised, sampling),
                proposal.probs,
                proposal.token_ids,
                uniform(seeds, drawn_at[:, :k], Stream.ACCEPT),
                uniform(seeds, drawn_at, Stream.RECOVER),
            )
        accepted, following = verification.num_accepted[:, None], verification.next_token[:, None]
        padded = torch.cat([proposal.token_ids, following], 1)
        token_ids = torch.where(drawn_at - lengths < accepted, padded, following)
        self.tokens[:rows].scatter_(1, drawn_at, token_ids)
        lengths += accepted + 1
        decided = torch.cat([accepted, token_ids, proposal.token_ids], 1).to(torch.int32)
        with_tokens = sampling.any_logprobs
        if not (log or with_tokens):
            return Round.of(decided.cpu().numpy(), k, 0, with_tokens=False)
        # what comes after the last token that some row keeps need not be logged; a CPU knows without waiting
        kept = int(accepted.max()) + 1 if self.device.type == "cpu" else k + 1
        packed = pack(logits[:, :kept], self.log_top_k, token_ids[:, :kept] if with_tokens else None)
        columns = torch.cat([decided, packed.flatten(1)], 1)  # the round's only copy from the device
        return Round.of(columns.cpu().numpy(), k, kept, with_tokens=with_tokens)

    def _count_answered(self, rows: int) -> Tensor:
        """How often each token came in the answers of the first rows: float32 [B, V]."""
        start = torch.tensor(self._prompt_lengths[:rows], device=self.device)[:, None]
        token_ids = self.tokens[:rows, : max(self.lengths[:rows])]
        return count_tokens(token_ids, start, self._device_lengths[:rows], self.vocab_size)

    def _catch_up(self, rows: int) -> int:
        """How many tokens the draft has missed, at most; rows that are far behind are read here."""
        assert self.draft is not None
        missed = 0
        for row in range(rows):
            behind = self.lengths[row] - 2 - self.draft.lengths[row]
            if behind > MAX_MISSED:
                self._advance(self.draft, row, self.lengths[row] - 2, self.max_length)
            else:
                missed = max(missed, behind)
        return missed

    def _advance(self, track: Track, row: int, until: int, budget: int, log: list[TargetLog] | None = None) -> None:
        """Feed a row's committed tokens to a model until its cache holds `until` positions."""
        start = track.lengths[row]
        end = min(until, start + budget)
        if start >= end:
            return
        positions = torch.arange(start, end, device=self.device)[None]
        window = Window(slice(row, row + 1), positions, self._key_length(end))
        keep = 1 if log is None else end - start
        logits = track.runner.forward(window, self.tokens[row : row + 1, start:end], keep)
        track.lengths[row] = end
        if log is not None:
            following = self.tokens[row : row + 1, start + 1 : end + 1]
            packed = pack(logits[..., : self.vocab_size].float(), self.log_top_k, following)
            log.append(unpack(packed.cpu().numpy(), with_tokens=True))

    def _key_length(self, length: int) -> int:
        return min(-(-length // KEY_BLOCK) * KEY_BLOCK, self.max_length)

    def _tracks(self) -> list[Track]:
        return [self.target] if self.draft is None else [self.target, self.draft]
