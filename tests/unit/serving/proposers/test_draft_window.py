"""A draft with a window drafts from the end of a long context what it would from that end alone."""

from functools import cache

import pytest
import torch

from hotdraft.pipeline.models.loading import load_causal_lm
from hotdraft.serving.decoding.build import build_decoder
from hotdraft.serving.decoding.decoder import SpeculativeDecoder
from hotdraft.serving.graphs.graphs import Graphs
from hotdraft.serving.messages.request import SamplingParams
from hotdraft.serving.proposers.draft_model import DraftModel
from hotdraft.serving.proposers.plan import ProposalPlan
from tests.unit.serving.decoders import GREEDY, batch, load, start
from tests.unit.serving.graphs.recorded import RecordedGraphs

WINDOW = 64
K = 3
LONG = [(7 * i * i + 3 * i) % 60 for i in range(180)]
PROMPTS = [LONG, LONG[:100], LONG[3:163]]


def made(
    target: str, draft: str, instructions: str = "auto", graphs: Graphs | None = None, window: int | None = WINDOW
) -> SpeculativeDecoder:
    return build_decoder(
        load(target),
        load(draft),
        num_slots=len(PROMPTS),
        max_model_len=400,
        max_k=K,
        log_top_k=8,
        draft_window=window,
        instructions=instructions,
        graphs=graphs,
    )


@pytest.fixture(params=["native", "torch", "graphs"])
def decoder(request: pytest.FixtureRequest, tiny_target: str, tiny_draft: str) -> SpeculativeDecoder:
    graphs = RecordedGraphs() if request.param == "graphs" else None
    return made(tiny_target, tiny_draft, "auto" if request.param == "native" else "none", graphs)


model_in = cache(load_causal_lm)


@cache
@torch.inference_mode()
def likeliest(folder: str, count: int, *ids: int) -> list[int]:
    """By transformers, from position 0 on; asked once, whatever the draft is computed by."""
    held = list(ids)
    for _ in range(count):
        held.append(int(model_in(folder)(torch.tensor([held])).logits[0, -1].argmax()))
    return held[len(ids) :]


def held(decoder: SpeculativeDecoder, row: int) -> list[int]:
    ids: list[int] = decoder.slots.held(row).tolist()
    return ids


def first_of(decoder: SpeculativeDecoder, row: int) -> int:
    assert isinstance(decoder.proposer, DraftModel)
    return decoder.proposer.firsts[row]


def test_it_drafts_from_the_end_of_what_is_long_also_when_an_answer_makes_it_long(
    decoder: SpeculativeDecoder, tiny_target: str, tiny_draft: str
) -> None:
    start(decoder, PROMPTS)
    firsts: list[set[int]] = [set() for _ in PROMPTS]
    for _ in range(140):
        before = [held(decoder, row) for row in range(len(PROMPTS))]
        outcome = decoder.round(ProposalPlan.uniform(len(PROMPTS), K), batch([GREEDY] * len(PROMPTS)), log=False)
        for row, ids in enumerate(before):
            first = first_of(decoder, row)
            firsts[row].add(first)
            assert len(ids) - first <= 3 * WINDOW
            assert outcome.proposed_ids[row, :K].tolist() == likeliest(tiny_draft, K, *ids[first:])
    assert [min(each) for each in firsts[:2]] == [len(LONG) - WINDOW, 0], "what is short is read whole"
    assert min(map(len, firsts)) > 1, "until its answer has made it long"
    for row, prompt in enumerate(PROMPTS):
        answer = held(decoder, row)[len(prompt) :]
        assert answer[:40] == likeliest(tiny_target, 40, *prompt)


def test_a_row_that_drafted_nothing_for_long_is_read_from_its_end(
    decoder: SpeculativeDecoder, tiny_draft: str
) -> None:
    start(decoder, PROMPTS)
    sampling = batch([GREEDY] * len(PROMPTS))
    only_last = ProposalPlan([()] * 3, [0, 0, K])
    for _ in range(140):
        decoder.round(only_last, sampling, log=False)
    assert first_of(decoder, 0) > len(LONG) - WINDOW
    before = [held(decoder, row) for row in range(len(PROMPTS))]
    outcome = decoder.round(ProposalPlan.uniform(3, K), sampling, log=False)
    for row, ids in enumerate(before):
        assert outcome.proposed_ids[row, :K].tolist() == likeliest(tiny_draft, K, *ids[first_of(decoder, row) :])


def test_it_drafts_for_sampled_answers_as_well(decoder: SpeculativeDecoder) -> None:
    start(decoder, PROMPTS)
    sampling = batch([SamplingParams(temperature=0.8)] * len(PROMPTS))
    for _ in range(40):
        outcome = decoder.round(ProposalPlan.uniform(len(PROMPTS), K), sampling, log=False)
        assert outcome.target_is_sound.all()
        assert outcome.draft_is_sound.all()


def test_what_was_read_of_a_beginning_is_used_again_while_it_lies_in_the_window(
    decoder: SpeculativeDecoder, tiny_draft: str
) -> None:
    proposer = decoder.proposer
    assert isinstance(proposer, DraftModel)
    decoder.load(0, LONG[:150])
    while not decoder.prefill(0, 50, with_proposer=True):
        pass
    decoder.load(1, LONG[:170])  # begins at 86, as the one before does
    assert first_of(decoder, 1) == 150 - WINDOW
    assert proposer.unread(1) == 20
    decoder.load(2, [*LONG, *LONG[:90]])  # from 86 on these are too many
    assert first_of(decoder, 2) == 270 - WINDOW
    for row in (1, 2):
        while not decoder.prefill(row, 50, with_proposer=True):
            pass
    before = [held(decoder, row) for row in range(3)]
    outcome = decoder.round(ProposalPlan.uniform(3, K), batch([GREEDY] * 3), log=False)
    for row, ids in enumerate(before):
        assert outcome.proposed_ids[row, :K].tolist() == likeliest(tiny_draft, K, *ids[first_of(decoder, row) :])


def test_prompts_read_together_are_read_from_their_ends(decoder: SpeculativeDecoder, tiny_draft: str) -> None:
    for row, prompt in enumerate(PROMPTS):
        decoder.load(row, prompt)
    decoder.prefill_together(slice(0, 3), with_proposer=True)
    outcome = decoder.round(ProposalPlan.uniform(3, K), batch([GREEDY] * 3), log=False)
    for row, prompt in enumerate(PROMPTS):
        assert outcome.proposed_ids[row, :K].tolist() == likeliest(tiny_draft, K, *prompt[first_of(decoder, row) :])


def test_a_row_that_is_moved_or_rewound_goes_on(decoder: SpeculativeDecoder, tiny_draft: str) -> None:
    start(decoder, PROMPTS[:1])
    decoder.move(0, 2)
    assert first_of(decoder, 2) == len(LONG) - WINDOW
    decoder.move(2, 0)
    decoder.rewind(0, 90)  # before the window began
    while not decoder.prefill(0, 50, with_proposer=True):
        pass
    outcome = decoder.round(ProposalPlan.uniform(1, K), batch([GREEDY]), log=False)
    assert first_of(decoder, 0) == 0
    assert outcome.proposed_ids[0, :K].tolist() == likeliest(tiny_draft, K, *LONG[:90])


def test_its_keys_take_no_more_than_the_window(tiny_target: str, tiny_draft: str) -> None:
    proposers = [made(tiny_target, tiny_draft, window=window).proposer for window in (WINDOW, None)]
    assert [each.longest for each in proposers if isinstance(each, DraftModel)] == [256, 448]


@pytest.mark.parametrize("length", range(284, 294))
def test_a_row_that_drafts_nothing_behind_many_guesses_stays_within_its_slot(
    tiny_target: str, tiny_draft: str, length: int
) -> None:
    """Steps are of all rows, as many as the one that drafts most has."""
    decoder = build_decoder(
        load(tiny_target), load(tiny_draft), num_slots=2, max_model_len=400, max_k=8, max_proposed=24,
        max_alternatives=4, log_top_k=8, draft_window=97, instructions="none",
    )  # fmt: skip
    prompt = (LONG * 2)[:length]
    start(decoder, [prompt[:97], prompt[:60]])
    decoder.slots.append_on_host([prompt[97:], []])  # an answer since
    decoder.slots.tokens[0, 97:length] = torch.tensor(prompt[97:])
    decoder.slots.device_lengths[0] = length
    plan = ProposalPlan([[1] * 24, []], [0, 8])
    outcome = decoder.round(plan, batch([SamplingParams(temperature=0.8)] * 2), log=False)
    assert outcome.draft_is_sound.all()
