"""A smaller model as proposer.

Between rounds its cache covers at least x[0..n-3] of a row, so its first step is fed the last two tokens: a
fully accepted round then needs no extra pass. After rounds that drafted nothing it is behind, and its first
step is fed what it missed as well.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from hotdraft.serving.graphs.draft_chain import DraftChain
from hotdraft.serving.models.native_runner import NativeRunner
from hotdraft.serving.models.runner import Runner, Window
from hotdraft.serving.models.slots import KEY_BLOCK, Slots
from hotdraft.serving.models.track import Track
from hotdraft.serving.models.trimmed_head import vocabulary_of
from hotdraft.serving.native.bindings import CONFIDENCES
from hotdraft.serving.proposers.acceptance import AcceptanceEstimate
from hotdraft.serving.proposers.plan import OnDevice, ProposalPlan
from hotdraft.serving.proposers.row_proposal import RowProposal, likeliest
from hotdraft.serving.sampling.alternatives import Alternatives, next_best
from hotdraft.serving.sampling.draw import Drawing, Drawn, draw
from hotdraft.serving.sampling.logits import SamplingBatch
from hotdraft.serving.sampling.penalties import AnswerTokens
from hotdraft.serving.sampling.proposal import Proposal
from hotdraft.serving.sampling.soundness import are_sound

MEMORY = 0.998
"""Weight of the past, by judged token, in what confidence is worth."""
MAX_MISSED = 32
"""Tokens that the first step reads at most beside its own two."""
RANKS = 6
"""Second choices that are looked at beside each drafted token."""


class DraftModel(Track):
    """Its runner has a slot more than there are rows, for probes."""

    def __init__(
        self,
        runner: Runner,
        slots: Slots,
        vocab_size: int,
        draw: Callable[..., Drawn] = draw,
        chain: DraftChain | None = None,
        window: int | None = None,
        longest: int | None = None,
        *,
        own_vocab_size: int,
        reads_target: bool = False,
    ) -> None:
        """Greedy tokens come of `chain` at once, where there is one. The runner's slots hold `longest` tokens.

        It proposes of the first `vocab_size` tokens, which the target has as well; its probes are of all its own.

        With `reads_target` what it drafted is read again once the target has read it.
        """
        super().__init__(runner, slots, lag=2, window=window)
        self.longest = longest or slots.max_length
        self._chain = chain
        self._reads_target = reads_target
        self._draw_token = draw
        self._vocab_size = vocab_size
        self.own_vocab_size = own_vocab_size
        fits = self.vocabulary is not None or getattr(runner, "num_outputs", None) == vocab_size
        self.stops_early = isinstance(runner, NativeRunner) and fits
        self._by_confidence = AcceptanceEstimate(np.linspace(0.15, 0.95, CONFIDENCES), MEMORY)
        """By eighths of the chance that the draft itself gave a token, of greedy rows."""
        self._confidences: list[list[int]] | None = None
        """Of the tokens drafted last."""
        self._before: list[int] = []
        """Tokens that the rows held then."""

    @property
    def vocabulary(self) -> Tensor | None:
        """int64 [N]: the tokens of the head, if it is not the whole vocabulary."""
        return vocabulary_of(self.runner.head)

    def advance(self, row: int, budget: int) -> None:
        self.read(row, budget)

    def catch_up(self, rows: Iterable[int], budget: int) -> list[int]:
        """Far is more than the first step of a round feeds it. A round itself reads what is left, however much."""
        behind = [row for row in rows if self.unread(row) > MAX_MISSED]
        for row in behind:
            self.advance(row, max(budget, MAX_MISSED))
        return [row for row in behind if self.unread(row) > MAX_MISSED]

    def propose(self, plan: ProposalPlan, sampling: SamplingBatch) -> Proposal:
        """As many tokens for each row as are asked of it, behind those that were guessed."""
        drafting, on_device = self._begin(plan), plan.on(self._slots.device)
        proposal = self._draft(plan, on_device, drafting, sampling)
        if not any(map(len, plan.guesses)):
            return proposal
        return proposal.after_guesses(on_device.guessed_ids, on_device.num_guessed)

    def propose_greedily(self, plan: ProposalPlan) -> list[RowProposal]:
        """The same natively in one call, where all rows are greedy."""
        assert isinstance(self.runner, NativeRunner), "only with `stops_early`"
        drafting, guesses = self._begin(plan), plan.guesses
        starts = {row: max(self.firsts[row], self._before[row] - self._lag - self.unread(row)) for row in drafting}
        fed = {row: [*self._slots.held(row)[start:], *guesses[row]] for row, start in starts.items()}
        reads = [len(fed.get(row, ())) for row in range(plan.rows)]
        token_ids, positions = np.zeros((2, plan.rows, max(reads)), np.int64)
        for row, start in starts.items():
            token_ids[row, -reads[row] :] = fed[row]
            positions[row, -reads[row] :] = np.arange(reads[row]) + start - self.firsts[row]
        floors = plan.floors or [0.0] * plan.rows
        ranks = min(RANKS, self.runner.num_outputs - 1) if plan.most_alternatives else 0
        rates = self._by_confidence.rates()
        draft = self.runner.draft_greedily(positions, token_ids, reads, plan.drafted, rates, floors, ranks)
        self._confidences = draft.confidences.tolist()
        rows = zip(guesses, plan.alternatives or [0] * plan.rows, *(part.tolist() for part in draft), strict=True)
        return [
            RowProposal(
                [*guess, *token_ids[:count]],
                len(guess),
                likeliest(others[:count], chances[:count], most, len(guess)) if most else (),
                sound=bool(sound),
            )
            for guess, most, token_ids, count, _, sound, others, chances in rows
        ]

    def _begin(self, plan: ProposalPlan) -> list[int]:
        """The rows that draft, none of them far behind."""
        for row in range(plan.rows):
            self.keep_in_window(row)
        drafting = [row for row, count in enumerate(plan.drafted) if count]
        while self.catch_up(drafting, KEY_BLOCK):
            pass
        self._before, self._confidences = self._slots.lengths[: plan.rows], None
        return drafting

    def _draft(
        self, plan: ProposalPlan, on_device: OnDevice, drafting: Sequence[int], sampling: SamplingBatch
    ) -> Proposal:
        slots, rows = self._slots, plan.rows
        ends = committed = slots.device_lengths[:rows]
        if any(map(len, plan.guesses)):
            ends = ends + on_device.num_guessed
            slots.write_ahead(on_device.guessed_ids)
        missed = max(self.unread(row) + len(plan.guesses[row]) for row in drafting)
        guesses = max(len(plan.guesses[row]) for row in drafting) if self._reads_target else 0
        chain = None if guesses else self._chain  # which knows no guesses
        if chain is not None:
            missed = chain.missed(missed)
        width = 2 + missed
        proposed = enumerate(plan.num_proposed)
        key_length = slots.key_length(max(slots.lengths[row] - self.firsts[row] + count for row, count in proposed))
        firsts = self._device_firsts(slice(0, rows))
        # where less is read than what is fed, its first token is fed more than once, at the same position
        positions = (ends + torch.arange(-width, 0, device=slots.device)).clamp_min(firsts)
        fed = slots.tokens[:rows].gather(1, positions)
        tokens, starts, _ = slots.answers(rows, max(map(len, plan.guesses)))
        answers = AnswerTokens(tokens, starts, ends, self._vocab_size)
        if self._window is not None:
            positions, ends = positions - firsts, ends - firsts
        if chain is not None and missed:  # by themselves, so that steps have one graph whatever was missed
            self.runner.forward(Window(slice(0, rows), positions[:, :missed], key_length), fed[:, :missed], 1)
            fed, positions = fed[:, missed:], positions[:, missed:]
        if chain is not None and sampling.is_greedy:
            k = max(plan.drafted)
            token_ids, sound = chain.draft(fed, positions, ends, self.vocabulary, key_length, k)
            return Proposal(token_ids, on_device.num_drafted, None, sound)
        draw_token = draw if sampling.is_greedy else self._draw_token
        drawing = Drawing(sampling, answers, self.vocabulary, draw_token, committed)
        others: list[tuple[Tensor, Tensor]] = []
        for step in range(max(plan.drafted)):
            counts = (on_device.num_drafted > step).int() * fed.shape[1]
            window = Window(slice(0, rows), positions, key_length, counts, guesses=0 if step else guesses)
            logits = self.runner.forward(window, fed, 1)
            # what a row is not asked for may be beyond its slot
            fed, positions = drawing.draw(logits), (ends + step).clamp_max(self.longest - 1)
            if plan.most_alternatives:
                others.append(next_best(logits[..., : self._vocab_size], fed, RANKS, self.vocabulary))
        alternatives = None
        if plan.alternatives is not None and others:
            token_ids, chances = (torch.stack(parts, 1) for parts in zip(*others, strict=True))
            alternatives = Alternatives.likeliest(token_ids, chances, on_device.num_drafted, plan.alternatives)
        return replace(drawing.proposal(), num_drafted=on_device.num_drafted, alternatives=alternatives)

    def observe(
        self, plan: ProposalPlan, num_proposed: Sequence[int], num_accepted: Sequence[int], sound: np.ndarray
    ) -> None:
        for row, (count, proposed) in enumerate(zip(num_accepted, num_proposed, strict=True)):
            if not plan.drafted[row]:
                continue
            # the last token that it drafted it has not read, nor an alternative
            self.lengths[row] = self._before[row] + (0 if self._reads_target else count - (count == proposed))
            guessed = len(plan.guesses[row])
            if self._confidences is not None and count >= guessed:
                self._by_confidence.observe(self._confidences[row][: proposed - guessed], count - guessed)
        for row in np.flatnonzero(~sound).tolist():
            self.discard(row)

    @torch.inference_mode()
    def logits(self, token_ids: Tensor, keep: int) -> Tensor:
        """Logits [keep, N] after the last `keep` of token_ids [1, T]; touches no request."""
        spare = self._slots.num_slots
        positions = torch.arange(token_ids.shape[1], device=self._slots.device)[None]
        window = Window(slice(spare, spare + 1), positions, self._slots.key_length(token_ids.shape[1]))
        logits = self.runner.forward(window, token_ids, keep)[0]
        if not are_sound(logits).all():  # the next one's must be
            self.runner.clear(spare)
        return logits
