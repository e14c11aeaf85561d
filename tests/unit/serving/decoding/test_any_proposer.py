"""The decoder asks no more of a proposer than its door says: here of one that is no model."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from hotdraft.pipeline.replay.sample import NOT_DRAFTED
from hotdraft.serving.decoding.decoder import SpeculativeDecoder
from hotdraft.serving.models.choose import make_runners
from hotdraft.serving.models.slots import Slots
from hotdraft.serving.proposers.plan import ProposalPlan
from hotdraft.serving.proposers.row_proposal import RowProposal
from hotdraft.serving.sampling.logits import SamplingBatch
from hotdraft.serving.sampling.proposal import Proposal
from tests.unit.serving.decoders import GREEDY, PROMPTS, batch, greedy_reference, load, run, start


class Oracle:
    """Knows what the target will say, and says less of it in some rows than in others."""

    stops_early = False

    def __init__(self, slots: Slots, texts: list[list[int]]) -> None:
        self._slots = slots
        self._texts = [text + [0] * 20 for text in texts]
        self.counts: list[list[int]] = []
        self.accepted: list[list[int]] = []

    def propose(self, plan: ProposalPlan, sampling: SamplingBatch) -> Proposal:
        rows, k = plan.rows, plan.k
        self.counts.append([(row + len(self.counts)) % (k + 1) for row in range(rows)])
        ids = [self._texts[row][self._slots.lengths[row] :][:k] for row in range(rows)]
        sound = torch.ones(rows, 1, dtype=torch.bool)
        return Proposal(torch.tensor(ids), torch.tensor(self.counts[-1]), None, sound)

    def propose_greedily(self, plan: ProposalPlan) -> list[RowProposal]:
        raise NotImplementedError

    def observe(
        self, plan: ProposalPlan, num_proposed: Sequence[int], num_accepted: Sequence[int], sound: np.ndarray
    ) -> None:
        assert sound.all()
        self.accepted.append(list(num_accepted))

    def unread(self, row: int) -> int:
        return 0

    def catch_up(self, rows: Iterable[int], budget: int) -> list[int]:
        return []

    def load(self, row: int, same: np.ndarray) -> None: ...
    def advance(self, row: int, budget: int) -> None: ...
    def rewind(self, row: int, length: int) -> None: ...
    def move(self, source: int, destination: int) -> None: ...
    def discard(self, slot: int) -> None: ...


def test_rows_may_draft_as_many_tokens_as_they_like(tiny_target: str) -> None:
    """All that was drafted is accepted, and nothing that stands behind it, though it were right."""
    reference = greedy_reference(tiny_target, PROMPTS)
    slots = Slots(len(PROMPTS), 105, torch.device("cpu"))
    oracle = Oracle(slots, [prompt + answer for prompt, answer in zip(PROMPTS, reference, strict=True)])
    runner, _, _ = make_runners(load(tiny_target), None, None, slots)
    decoder = SpeculativeDecoder(runner, oracle, slots, vocab_size=257, max_model_len=100, max_k=4, log_top_k=8)
    start(decoder, PROMPTS)
    greedy = batch([GREEDY] * len(PROMPTS))
    outcome = decoder.round(ProposalPlan.uniform(len(PROMPTS), 3), greedy, log=False)
    assert oracle.counts == [[0, 1, 2, 3]]
    assert oracle.accepted == [[0, 1, 2, 3]]
    assert outcome.num_proposed.tolist() == [0, 1, 2, 3]
    for row, count in enumerate(outcome.num_proposed):
        assert outcome.proposed_ids[row].tolist() == reference[row][:count] + [NOT_DRAFTED] * (4 - count)
    for row, prompt in enumerate(PROMPTS):
        decoder.rewind(row, len(prompt))
    assert run(decoder, [4, 0, 2, 1], greedy, len(PROMPTS)) == reference
    assert all(accepted == counts for accepted, counts in zip(oracle.accepted[:4], oracle.counts[:4], strict=True))
