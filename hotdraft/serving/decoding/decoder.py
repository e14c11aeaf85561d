"""The speculative decoder: slots of tokens, a target, a proposer, and the round that advances them.

A slot's row holds its committed tokens x[0..n-1]. Between rounds the target's cache covers x[0..n-2], so a
round feeds it the last token and what was drafted.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from hotdraft.pipeline.replay.sample import NOT_DRAFTED
from hotdraft.pipeline.system.transfer import received
from hotdraft.serving.decoding.greedy_round import judge_greedily
from hotdraft.serving.decoding.rounds import Round, RoundSeconds
from hotdraft.serving.decoding.token_tree import TokenTree
from hotdraft.serving.graphs.recurring import Graphed
from hotdraft.serving.graphs.round_graphs import RoundGraphs
from hotdraft.serving.messages.request import SamplingParams
from hotdraft.serving.models.hidden_states.target_states import TargetStates
from hotdraft.serving.models.native_runner import NativeRunner
from hotdraft.serving.models.runner import Runner, Window
from hotdraft.serving.models.slots import Slots
from hotdraft.serving.models.track import Track
from hotdraft.serving.proposers.plan import ProposalPlan
from hotdraft.serving.proposers.proposer import Proposer
from hotdraft.serving.proposers.row_proposal import RowProposal
from hotdraft.serving.sampling.logits import SamplingBatch
from hotdraft.serving.sampling.penalties import AnswerTokens
from hotdraft.serving.sampling.proposal import Proposal
from hotdraft.serving.sampling.soundness import UnsoundLogitsError
from hotdraft.serving.sampling.target_log import TargetLog, pack, unpack
from hotdraft.serving.sampling.verify import Verified, follow, verify


class SpeculativeDecoder:
    """Decodes the first B rows of the slots together; k = 0 is plain decoding by the same code.

    The rows in use are kept at the front by `move`. Temperature, filters and seeds come with each round. With
    `proposer=None` only k = 0 is possible.
    """

    def __init__(
        self,
        target: Runner,
        proposer: Proposer | None,
        slots: Slots,
        *,
        vocab_size: int,
        max_model_len: int,
        max_k: int,
        max_alternatives: int = 0,
        log_top_k: int,
        verify: Callable[..., Verified] = verify,
        graphed: Mapping[str, Graphed] = MappingProxyType({}),
        round_graphs: RoundGraphs | None = None,
        states: TargetStates | None = None,
    ) -> None:
        """`states` are what the proposer reads of the target."""
        self.slots = slots
        self.target = Track(target, slots, lag=1, states=states)
        self.proposer = proposer
        self.device = slots.device
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.max_k = 0 if proposer is None else max_k
        self.max_alternatives = max_alternatives
        self.log_top_k = log_top_k
        self.graphed = graphed
        """Parts that have graphs, by name."""
        self.round_graphs = round_graphs
        """To be recorded before the first request."""
        self.proposer_seconds = 0.0
        """That it took the host to have the proposer read prompts."""
        self._judges_on_host = isinstance(target, NativeRunner) and (proposer is None or proposer.stops_early)
        """Whether greedy rounds go by plain numbers."""
        self._verify = verify
        self._readers: list[Track | Proposer] = [self.target] if proposer is None else [self.target, proposer]

    @torch.inference_mode()
    def load(self, row: int, prompt_ids: Sequence[int], *, scope: str = "", read_whole: bool = False) -> None:
        """Start a request in a slot; `prefill` must follow before it joins a round.

        What some slot of the same scope, in use or not, has read already of the same tokens is copied, unless the
        target is to `read_whole` the prompt.
        """
        same = self.slots.load(row, prompt_ids, scope)
        for reader in self._readers:
            # what reads the target's states waits for them
            anew = read_whole and (reader is self.target or self.target.states is not None)
            reader.load(row, np.zeros_like(same) if anew else same)

    @torch.inference_mode()
    def prefill(
        self, row: int, budget: int, *, with_proposer: bool, prompt_log: list[TargetLog] | None = None
    ) -> bool:
        """Process up to `budget` prompt tokens of a row with target and proposer; True once it may join a round.

        What the target thought of the tokens that follow those it read is added to `prompt_log`.
        """
        start = self.target.lengths[row]
        logits = self.target.read(row, budget, keep_all=prompt_log is not None)
        if prompt_log is not None and logits is not None:
            following = self.slots.tokens[row : row + 1, start + 1 : self.target.lengths[row] + 1]
            packed = pack(logits[..., : self.vocab_size].float(), self.log_top_k, following)
            prompt_log.append(unpack(received(packed), with_tokens=True))
        if with_proposer and self.proposer is not None:
            began = time.perf_counter()
            self.proposer.advance(row, budget)
            self.proposer_seconds += time.perf_counter() - began
        return self.unread(row, with_proposer=with_proposer) == 0

    @torch.inference_mode()
    def prefill_together(self, rows: slice, *, with_proposer: bool) -> None:
        """Process what is left of the prompts of rows that follow one another, in one forward of each model."""
        for reader in self._readers[: 1 + with_proposer]:
            reader.read_together(rows)

    def unread(self, row: int, *, with_proposer: bool) -> int:
        """Prompt tokens that the target, or the proposer if it is further behind, has yet to read."""
        return max(reader.unread(row) for reader in self._readers[: 1 + with_proposer])

    @torch.inference_mode()
    def discard(self, row: int) -> None:
        """Forget a slot whose keys may not be numbers: they are zeroed, and nothing of it is reused."""
        for reader in self._readers:
            reader.discard(row)

    @property
    def keeps_states(self) -> bool:
        """Whether a draft reads what the target's layers make of tokens, and the device is the host."""
        return self.target.states is not None and self.device.type == "cpu"

    def states_of(self, row: int) -> np.ndarray:
        """What the target's layers made of a row's tokens; only with `keeps_states`."""
        assert self.target.states is not None, "nobody reads states"
        return self.target.states.copied(row, self.target.lengths[row])

    def check(self) -> None:
        """Raise what keeps a made-up request in the first slot from its tokens; only while no slot is in use."""
        self.load(0, [0] * 4)
        self.prefill(0, 4, with_proposer=True)
        greedy = SamplingBatch.of([SamplingParams(temperature=0)], [0], self.device)
        plan = ProposalPlan.uniform(1, self.max_k)
        if not self.round(plan, greedy, log=False).target_is_sound.all():
            raise UnsoundLogitsError("the target's logits are not numbers, whatever it reads")

    def rewind(self, row: int, length: int) -> None:
        """Forget a slot's tokens from `length` on."""
        for part in (self.slots, *self._readers):
            part.rewind(row, length)

    @torch.inference_mode()
    def move(self, source: int, destination: int) -> None:
        """Copy a slot over another, which is lost."""
        for part in (self.slots, *self._readers):
            part.move(source, destination)

    @torch.inference_mode()
    def catch_up(self, rows: Iterable[int], budget: int) -> list[int]:
        """Let the proposer read some `budget` tokens of each row it is far behind in; those where it still is."""
        assert self.proposer is not None, "drafting needs a proposer"
        return self.proposer.catch_up(rows, budget)

    @torch.inference_mode()
    def round(
        self,
        plan: ProposalPlan,
        sampling: SamplingBatch,
        *,
        log: bool,
        meanwhile: Callable[[], object] | None = None,
    ) -> Round:
        """Propose what is planned, verify it in one target forward, commit what it brings.

        A GPU computes while the host does what it has `meanwhile`.

        The target's distributions are brought along with `log`, or where a request asks for log-probs. A row
        of which the target's logits are not sound must not go on; its slot has been discarded. Where the
        proposer's are not, it goes on, and the proposer guesses without what it knew.
        """
        rows = plan.rows
        most = plan.k + plan.most_alternatives
        assert max(self.slots.lengths[:rows]) + most < self.slots.max_length, "a round's tokens fit their slots"
        catches_up = self._catches_up(plan)
        began = time.perf_counter()
        proposal = self.propose(plan, sampling)
        proposed = time.perf_counter()
        if isinstance(proposal, Proposal):
            outcome = self._judge(rows, proposal, sampling, log, meanwhile)
            outcome.num_guessed = np.array([len(guess) for guess in plan.guesses])
            new = zip(outcome.token_ids, outcome.num_new.tolist(), strict=True)
            self.slots.append_on_host([token_ids[:count] for token_ids, count in new])
        else:
            outcome = judge_greedily(
                self.target,
                self.slots,
                proposal,
                self.vocab_size,
                top_k=self.log_top_k if log or sampling.any_logprobs else 0,
                with_tokens=sampling.any_logprobs,
            )
        num_accepted = outcome.num_accepted.tolist()
        self.target.lengths[:rows] = [length - 1 for length in self.slots.lengths[:rows]]
        if any(plan.drafted) and self.proposer is not None:
            self.proposer.observe(plan, outcome.num_proposed.tolist(), num_accepted, outcome.draft_is_sound)
        for row, is_sound in enumerate(outcome.target_is_sound.tolist()):
            if not is_sound:
                self.discard(row)
        verified = time.perf_counter()
        if self.device.type == "cpu":
            outcome.seconds = RoundSeconds(proposed - began, verified - proposed, catches_up)
        else:
            outcome.seconds = RoundSeconds(None, verified - began, catches_up)
        return outcome

    def _catches_up(self, plan: ProposalPlan) -> bool:
        proposer = self.proposer
        return proposer is not None and any(
            count and proposer.unread(row) for row, count in enumerate(plan.drafted)
        )

    @torch.inference_mode()
    def propose(self, plan: ProposalPlan, sampling: SamplingBatch) -> Proposal | list[RowProposal]:
        """What is planned for the first rows, in plain numbers where that is all it takes; commits nothing."""
        on_host = self._judges_on_host and sampling.is_greedy
        if not any(plan.drafted):
            if on_host:
                return [RowProposal(list(guess), len(guess)) for guess in plan.guesses]
            on_device = plan.on(self.device)
            return Proposal.of_guesses(on_device.guessed_ids, on_device.num_guessed)
        assert self.proposer is not None, "drafting needs a proposer"
        return self.proposer.propose_greedily(plan) if on_host else self.proposer.propose(plan, sampling)

    def _judge(
        self,
        rows: int,
        proposal: Proposal,
        sampling: SamplingBatch,
        log: bool,
        meanwhile: Callable[[], object] | None,
    ) -> Round:
        k = proposal.k
        lengths = self.slots.device_lengths[:rows]
        drawn_at = lengths + torch.arange(k + 1, device=self.device)
        tree = TokenTree.of(self.slots.tokens[:rows].gather(1, lengths - 1), drawn_at, proposal)
        width = tree.token_ids.shape[1]
        key_length = self.slots.key_length(max(self.slots.lengths[:rows]) + width - 1)
        window = Window(slice(0, rows), tree.positions, key_length, tree.counts, tree.keys)
        logits = self.target.runner.forward(window, tree.token_ids, width)[..., : self.vocab_size].float()
        penalised = AnswerTokens(*self.slots.answers(rows), self.vocab_size).penalised_counts(sampling)
        verifying = verify if sampling.is_greedy else self._verify
        verdict = verifying(logits[:, : k + 1], replace(proposal, alternatives=None), drawn_at, sampling, penalised)
        with_alternatives = proposal.alternatives is not None
        if with_alternatives:
            verdict, columns = follow(verdict, logits, proposal, drawn_at, sampling, penalised, verifying)
            if columns is not None:
                self._move_alternatives(lengths, verdict, columns)
                if log or sampling.any_logprobs:
                    logits = logits.gather(1, columns[..., None].expand(-1, -1, self.vocab_size))
        accepted, token_ids = verdict.num_accepted, verdict.token_ids
        self.slots.append(drawn_at, token_ids, verdict.num_new)
        proposed = torch.where(proposal.drafted, proposal.token_ids, NOT_DRAFTED)
        parts = [verdict.sound, proposal.sound, accepted, token_ids, proposed]
        if proposal.alternatives is not None and verdict.came is not None:
            parts += [verdict.came, proposal.alternatives.counts]
        columns, kept, with_tokens = torch.cat(parts, 1).int(), 0, sampling.any_logprobs
        if log or with_tokens:
            # what comes after the last token that some row keeps need not be logged; a CPU knows without waiting
            kept = int(verdict.num_new.max()) if self.device.type == "cpu" else k + 1
            packed = pack(logits[:, :kept], self.log_top_k, token_ids[:, :kept] if with_tokens else None)
            columns = torch.cat([columns, packed.flatten(1)], 1)
        if meanwhile is not None:
            meanwhile()
        told = received(columns)  # the round's only copy from the device
        return Round.of(told, k, kept, with_tokens=with_tokens, with_alternatives=with_alternatives)

    def _move_alternatives(self, lengths: Tensor, verdict: Verified, columns: Tensor) -> None:
        """Bring the keys of those that came to where the tokens are, in the rows of lengths [B, 1]."""
        assert verdict.came is not None
        following = lengths + verdict.num_accepted
        column = columns.gather(1, (verdict.num_accepted + 1).clamp_max(columns.shape[1] - 1))
        sources = torch.where(verdict.came >= 0, lengths - 1 + column, following)
        self.target.move_keys(sources[:, 0], following[:, 0])
