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

from hotdraft.serving.decoding.rounds import Round
from hotdraft.serving.messages.request import SamplingParams
from hotdraft.serving.models.choose import make_runners
from hotdraft.serving.models.runner import Window
from hotdraft.serving.models.track import Track
from hotdraft.serving.proposers.proposer import Proposal
from hotdraft.serving.sampling.distributions import Distributions
from hotdraft.serving.sampling.logits import SamplingBatch
from hotdraft.serving.sampling.noise import Stream, uniform
from hotdraft.serving.sampling.penalties import count_drafted, count_tokens, penalise
from hotdraft.serving.sampling.rejection import match, rejection_sample
from hotdraft.serving.sampling.soundness import UnsoundLogitsError, are_sound, mended
from hotdraft.serving.sampling.target_log import TargetLog, pack, unpack

KEY_BLOCK = 64
"""Attention reads whole blocks of keys, so that shapes recur."""
MIN_SHARED = 16
"""Tokens of a common beginning from which on it is copied instead of read again."""
MAX_MISSED = 32
"""Tokens that the draft's first step reads at most beside its own two."""


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
        self.max_model_len = max_model_len
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
            shared = np.minimum(track.reusable(same), needed)
            source = int(shared.argmax())
            reused = 0 if read_whole and track is self.target else int(shared[source])
            track.begin(row, self._reuse(track, source, row, reused))
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
        for track, until in self._goals(row, with_draft):
            self._advance(track, row, until, budget, prompt_log if track is self.target else None)
        return self.unread(row, with_draft=with_draft) == 0

    def unread(self, row: int, *, with_draft: bool) -> int:
        """Prompt tokens that one of the models, the one that is further behind, has yet to read."""
        return max(0, *(until - track.lengths[row] for track, until in self._goals(row, with_draft)))

    def _goals(self, row: int, with_draft: bool) -> list[tuple[Track, int]]:
        goals = [(self.target, self.lengths[row] - 1)]
        if with_draft and self.draft is not None:
            goals.append((self.draft, self.lengths[row] - 2))
        return goals

    @torch.inference_mode()
    def discard(self, row: int) -> None:
        """Forget a slot whose keys may not be numbers: they are zeroed, and nothing of it is reused."""
        for track in self._tracks():
            track.spoil(row)

    def check(self) -> None:
        """Raise what keeps a made-up request in the first slot from its tokens; only while no slot is in use."""
        self.load(0, [0] * 4)
        self.prefill(0, 4, with_draft=True)
        greedy = SamplingBatch.of([SamplingParams(temperature=0)], [0], self.device)
        if not self.round(1, self.max_k, greedy, log=False).target_is_sound.all():
            raise UnsoundLogitsError("the target's logits are not numbers, whatever it reads")

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
            track.move(source, destination, length)

    @torch.inference_mode()
    def round(self, rows: int, k: int, sampling: SamplingBatch, *, log: bool) -> Round:
        """Draft k tokens, verify them in one target forward, commit 1..k+1 tokens in each of the first rows.

        The target's distributions are brought along with `log`, or where a request asks for log-probs. A row
        of which the target's logits are not sound must not go on; its slot has been discarded. Where the
        draft's are not, it goes on, and the draft guesses without what it knew.
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
        for row in np.flatnonzero(~outcome.target_is_sound).tolist():
            self.discard(row)
        for row in np.flatnonzero(~outcome.draft_is_sound).tolist():
            assert self.draft is not None
            self.draft.spoil(row)
        return outcome

    @torch.inference_mode()
    def catch_up(self, rows: int, budget: int) -> bool:
        """Let the draft read up to `budget` tokens of each row that it is far behind in; True if it is in none now.

        Far is more than the first step of a round feeds it. A round itself reads what is left, however much.
        """
        assert self.draft is not None, "drafting needs a draft"
        behind = [row for row in range(rows) if self._missed(row) > MAX_MISSED]
        for row in behind:
            self._advance(self.draft, row, self.lengths[row] - 2, budget)
        return all(self._missed(row) <= MAX_MISSED for row in behind)

    @torch.inference_mode()
    def propose(self, rows: int, k: int, sampling: SamplingBatch) -> Proposal:
        """Let the draft propose k tokens for each of the first rows; commits nothing."""
        lengths = self._device_lengths[:rows]
        sound = torch.ones(rows, 1, dtype=torch.bool, device=self.device)
        if k == 0:
            return Proposal(lengths.new_zeros(rows, 0), None, sound)
        assert self.draft is not None, "drafting needs a draft"
        while not self.catch_up(rows, KEY_BLOCK):
            pass
        missed = max(map(self._missed, range(rows)))
        key_length = self._key_length(max(self.lengths[:rows]) + k)
        # a prompt shorter than what is fed has its first token fed more than once, at the same position
        positions = (lengths + torch.arange(-2 - missed, 0, device=self.device)).clamp_min(0)
        fed = self.tokens[:rows].gather(1, positions)
        ids: list[Tensor] = []
        steps: list[Distributions] = []
        counts = self._count_answered(rows) if sampling.any_penalised else None
        for step in range(k):
            logits = self.draft.runner.forward(Window(slice(0, rows), positions, key_length), fed, 1)
            usable = are_sound(logits)
            sound = sound & usable[:, 0]
            if sampling.any_sampled:
                logits = mended(logits, usable)
            fed, distributions = self._draw(logits, lengths + step, sampling, counts)
            positions = lengths + step
            ids.append(fed)
            if counts is not None:
                counts.scatter_add_(1, fed, torch.ones_like(fed, dtype=counts.dtype))
            steps.append(distributions)
        return Proposal(torch.cat(ids, 1), None if sampling.all_chosen else Distributions.cat(steps), sound)

    @torch.inference_mode()
    def draft_logits(self, token_ids: Tensor, keep: int) -> Tensor:
        """The draft's logits [keep, N] after the last `keep` of token_ids [1, T]; touches no request."""
        assert self.draft is not None
        spare = slice(self._spare_slot, self._spare_slot + 1)
        positions = torch.arange(token_ids.shape[1], device=self.device)[None]
        window = Window(spare, positions, self._key_length(token_ids.shape[1]))
        logits = self.draft.runner.forward(window, token_ids, keep)[0]
        if not are_sound(logits).all():  # the next one's must be
            self.draft.runner.clear(self._spare_slot)
        return logits

    def _draw(
        self, logits: Tensor, position: Tensor, sampling: SamplingBatch, counts: Tensor | None
    ) -> tuple[Tensor, Distributions]:
        """Drafted ids [B, 1] and what they were drawn from, from logits [B, 1, N].

        They are penalised by the `counts` [B, V] of answered tokens, if there are any.
        """
        assert self.draft is not None
        vocabulary = self.draft.token_ids
        logits = logits.float() if vocabulary is not None else logits[..., : self.vocab_size].float()
        if counts is not None:
            known = counts if vocabulary is None else counts[:, vocabulary]
            logits = penalise(logits, known[:, None], sampling)
        drawn_from = Distributions.of(logits, sampling, vocabulary, self.vocab_size)
        if sampling.all_chosen:
            return drawn_from.choose(sampling, position), drawn_from
        first = torch.zeros_like(sampling.seeds)
        token_ids = drawn_from.sample(first, uniform(sampling.seeds, position[:, 0], Stream.DRAFT))[:, None]
        if sampling.chosen is not None:
            token_ids[sampling.chosen] = drawn_from.choose(sampling, position)[sampling.chosen]
        return token_ids, drawn_from

    def _verify(self, rows: int, k: int, proposal: Proposal, sampling: SamplingBatch, log: bool) -> Round:
        lengths = self._device_lengths[:rows]
        drawn_at = lengths + torch.arange(k + 1, device=self.device)
        positions = drawn_at - 1
        fed = torch.cat([self.tokens[:rows].gather(1, lengths - 1), proposal.token_ids], 1)
        window = Window(slice(0, rows), positions, self._key_length(max(self.lengths[:rows]) + k))
        logits = self.target.runner.forward(window, fed, k + 1)[..., : self.vocab_size].float()
        sound = are_sound(logits).all(1)
        penalised = logits
        if sampling.any_penalised:
            counts = count_drafted(self._count_answered(rows), proposal.token_ids)
            penalised = penalise(logits, counts, sampling)
        target = Distributions.of(penalised, sampling)
        if not sampling.all_chosen:
            seeds = sampling.seeds[:, None]
            accept_noise = uniform(seeds, drawn_at[:, :k], Stream.ACCEPT)
            recover_noise = uniform(seeds, drawn_at, Stream.RECOVER)
            drawn_from, drafted_ids = proposal.distributions, proposal.token_ids
            verification = rejection_sample(target, drawn_from, drafted_ids, accept_noise, recover_noise)
        if sampling.chosen is not None:
            matched = match(target.choose(sampling, drawn_at), proposal.token_ids)
            verification = matched if sampling.all_chosen else verification.replaced(matched, sampling.chosen)
        accepted, following = verification.num_accepted[:, None] * sound, verification.next_token[:, None]
        following = following.clamp_max(self.vocab_size - 1)  # none can be drawn from what is not sound
        padded = torch.cat([proposal.token_ids, following], 1)
        token_ids = torch.where(drawn_at - lengths < accepted, padded, following)
        self.tokens[:rows].scatter_(1, drawn_at, token_ids)
        lengths += accepted + 1
        decided = torch.cat([sound, proposal.sound, accepted, token_ids, proposal.token_ids], 1).to(torch.int32)
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

    def _missed(self, row: int) -> int:
        assert self.draft is not None
        return max(0, self.lengths[row] - 2 - self.draft.lengths[row])

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
