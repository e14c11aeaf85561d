"""Rounds whose target reads second choices of the draft as well: the same answers, by fewer rounds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from hotdraft.serving.decoding.build import build_decoder
from hotdraft.serving.decoding.decoder import SpeculativeDecoder
from hotdraft.serving.decoding.rounds import Round
from hotdraft.serving.messages.request import SamplingParams
from hotdraft.serving.proposers.plan import ProposalPlan
from hotdraft.serving.sampling.proposal import Proposal
from tests.models import disturbed, tiny_llama
from tests.unit.serving.decoders import GREEDY, NEW_TOKENS, PROMPTS, batch, start

ROWS = len(PROMPTS)
RAGGED = [[3, 0, 5, 1], [4, 2, 0, 3]]
"""Alternatives of each row, by turns."""


def decoder(instructions: str = "auto", vocabulary: torch.Tensor | None = None) -> SpeculativeDecoder:
    target = tiny_llama(layers=2, seed=1)
    return build_decoder(
        target,
        disturbed(target),
        num_slots=ROWS,
        max_model_len=100,
        max_k=4,
        max_alternatives=5,
        log_top_k=8,
        instructions=instructions,
        draft_vocabulary=vocabulary,
    )


def rounds(made: SpeculativeDecoder, plans: list[ProposalPlan], params: SamplingParams) -> list[Round]:
    """As many as the slowest row takes to its `NEW_TOKENS`."""
    start(made, PROMPTS)
    sampling, outcomes = batch([params] * ROWS), []
    while (
        min(length - len(prompt) for length, prompt in zip(made.slots.lengths, PROMPTS, strict=False)) < NEW_TOKENS
    ):
        outcomes.append(made.round(plans[len(outcomes) % len(plans)], sampling, log=True))
    return outcomes


def answers(made: SpeculativeDecoder) -> list[list[int]]:
    return [made.slots.held(row)[len(prompt) :][:NEW_TOKENS].tolist() for row, prompt in enumerate(PROMPTS)]


def logged(outcomes: list[Round], row: int) -> np.ndarray:
    """The target's log-probs at a row's first positions."""
    parts = [round_.target_log.top_logprobs[row, : round_.num_new[row]] for round_ in outcomes if round_.target_log]
    return np.concatenate(parts)[:NEW_TOKENS]


SAMPLING = {
    "greedy": GREEDY,
    "seeded": SamplingParams(temperature=0.9, seed=1),
    "penalised": SamplingParams(temperature=0, presence_penalty=1.5, frequency_penalty=0.7, repetition_penalty=1.2),
}


@pytest.mark.parametrize("params", SAMPLING.values(), ids=SAMPLING.keys())
@pytest.mark.parametrize("instructions", ["auto", "none"])
def test_answers_and_logs_are_those_of_plain_decoding(instructions: str, params: SamplingParams) -> None:
    plain = decoder(instructions)
    one_by_one = rounds(plain, [ProposalPlan.uniform(ROWS, 0)], params)
    chains = [ProposalPlan.uniform(ROWS, 3), ProposalPlan.uniform(ROWS, 2)]
    without = rounds(decoder(instructions), chains, params)
    made = decoder(instructions)
    outcomes = rounds(
        made, [replace(plan, alternatives=each) for plan, each in zip(chains, RAGGED, strict=True)], params
    )
    came = sum(int((outcome.came >= 0).sum()) for outcome in outcomes)
    assert came >= 4, "the check has teeth"
    assert len(outcomes) < len(without)
    assert answers(made) == answers(plain)
    for row in range(ROWS):
        np.testing.assert_allclose(logged(outcomes, row), logged(one_by_one, row), atol=2e-4)


def test_what_the_draft_knows_is_what_it_knew_without_them() -> None:
    """It reads the token that came in another's place: later drafts are those of one that began with the answer."""
    made = decoder()
    outcomes = rounds(made, [ProposalPlan.uniform(ROWS, 3, alternatives=5)], GREEDY)
    assert any((outcome.came >= 0).any() for outcome in outcomes)
    fresh = decoder()
    start(fresh, [made.slots.held(row).tolist() for row in range(ROWS)])
    plan, sampling = ProposalPlan.uniform(ROWS, 4), batch([GREEDY] * ROWS)
    assert made.propose(plan, sampling) == fresh.propose(plan, sampling)


def test_they_stand_behind_guesses_too() -> None:
    plain = decoder()
    rounds(plain, [ProposalPlan.uniform(ROWS, 0)], GREEDY)
    expected = answers(plain)
    guesses = [tuple(answer[:2]) for answer in expected]
    made = decoder()
    start(made, PROMPTS)
    plan = ProposalPlan(guesses, [2, 2, 0, 2], alternatives=[5, 5, 5, 0])
    outcome = made.round(plan, batch([GREEDY] * ROWS), log=False)
    assert outcome.num_alternatives.tolist() == [5, 5, 0, 0]
    assert (outcome.num_accepted >= 2).all()
    for row, answer in enumerate(expected):
        count = outcome.num_new[row]
        assert outcome.token_ids[row, :count].tolist() == answer[:count]


@pytest.mark.parametrize("instructions", ["auto", "none"])
def test_rows_are_guessed_for_to_different_lengths_without_a_draft(instructions: str) -> None:
    """Whatever is computed behind a row that has fewer spoils nothing of it."""
    made = build_decoder(
        tiny_llama(layers=2, seed=1),
        None,
        num_slots=ROWS,
        max_model_len=100,
        max_k=4,
        log_top_k=8,
        instructions=instructions,
    )
    rounds(made, [ProposalPlan.uniform(ROWS, 0)], GREEDY)
    expected = answers(made)
    start(made, PROMPTS)
    right, wrong = [tuple(answer[:4]) for answer in expected], (1, 2, 3)
    guesses = [right[0], (), wrong, right[3][:2]]
    outcome = made.round(ProposalPlan(guesses, [0] * ROWS), batch([GREEDY] * ROWS), log=False)
    assert outcome.num_proposed.tolist() == [4, 0, 3, 2]
    assert outcome.num_accepted.tolist() == [4, 0, 0, 2]
    while min(made.slots.lengths) < max(map(len, PROMPTS)) + NEW_TOKENS:
        made.round(ProposalPlan.uniform(ROWS, 0), batch([GREEDY] * ROWS), log=False)
    assert answers(made) == expected


def test_a_trimmed_draft_names_its_second_choices() -> None:
    known = torch.arange(0, 257, 2)
    made = decoder(vocabulary=known)
    start(made, PROMPTS)
    plan = ProposalPlan.uniform(ROWS, 3, alternatives=4)
    proposal = made.propose(plan, batch([SamplingParams(temperature=0.8)] * ROWS))
    assert isinstance(proposal, Proposal)
    assert proposal.alternatives is not None
    assert np.isin(proposal.alternatives.token_ids, known).all()
    greedy = made.propose(plan, batch([GREEDY] * ROWS))
    assert isinstance(greedy, list)
    assert all(one.token_id % 2 == 0 for row in greedy for one in row.alternatives)
    assert all(len(row.alternatives) == 4 for row in greedy)


@pytest.mark.parametrize("instructions", ["auto", "none"])
def test_a_row_one_of_whose_second_choices_gave_no_number_ends_though_it_did_not_come(instructions: str) -> None:
    """Its keys would spoil what comes after it in the slot."""
    made = decoder(instructions)
    start(made, PROMPTS)
    runner = made.target.runner

    def spoiled(compute: Callable[..., Any]) -> Callable[..., Any]:
        def spoil(*told: Any) -> Any:
            logits = compute(*told)
            logits[2, -1] = torch.nan
            return logits

        return spoil

    for name in ("forward", "read"):  # a native target's greedy rounds do without tensors
        if hasattr(runner, name):
            setattr(runner, name, spoiled(getattr(runner, name)))
    outcome = made.round(ProposalPlan.uniform(ROWS, 1, alternatives=3), batch([GREEDY] * ROWS), log=False)
    assert outcome.num_alternatives[2] == 3
    assert outcome.target_is_sound.tolist() == [True, True, False, True]
