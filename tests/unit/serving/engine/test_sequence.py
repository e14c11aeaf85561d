"""How many of a round's tokens a request takes, and when it ends."""

import pytest

from hotdraft.serving.engine.detokenizer import Detokenizer
from hotdraft.serving.engine.output import Output
from hotdraft.serving.engine.sequence import Sequence
from hotdraft.serving.messages.request import GenerationRequest, OutputDelta, SamplingParams
from hotdraft.serving.proposers.acceptance import AcceptanceEstimate, Estimates, by_position, of_alternatives
from hotdraft.serving.proposers.suffixes import NOTHING
from tests.models import tiny_tokenizer
from tests.unit.serving.rounds import a_round

EOS = 256


def sequence(**params: object) -> Sequence:
    request = GenerationRequest("r", (1, 2), SamplingParams(**{"max_tokens": 100, **params}))
    output = Output(request, unheard, Detokenizer(tiny_tokenizer().backend_tokenizer, {EOS}))
    estimates = Estimates(AcceptanceEstimate(by_position(4)), None, AcceptanceEstimate(of_alternatives(2)))
    return Sequence(output, seed=0, eos_ids=frozenset({EOS}), estimates=lambda: estimates)


def unheard(delta: OutputDelta) -> None:
    raise AssertionError("the engine's side tells nobody")


@pytest.mark.parametrize(
    ("params", "reason", "length"),
    [
        ({}, "stop", 3),
        ({"ignore_eos": True}, "length", 5),
        ({"stop_token_ids": [98]}, "stop", 2),
        ({"stop_token_ids": [70, 71]}, "stop", 3),
        ({"ignore_eos": True, "stop_token_ids": [71, 70]}, "stop", 4),
        ({"ignore_eos": True, "stop_token_ids": [EOS]}, "stop", 3),
    ],
    ids=str,
)
def test_the_end_within_a_round_drops_what_follows(params: dict[str, object], reason: str, length: int) -> None:
    under_test = sequence(max_tokens=5, **params)
    assert under_test.advance(a_round([97, 98, EOS, 70, 71, 72]), 0) == (length, reason)
    assert under_test.left == 5 - length


def test_only_what_was_verified_is_taken() -> None:
    under_test = sequence()
    assert under_test.advance(a_round([70, 71, 72, EOS], accepted=1), 0) == (2, None)
    assert under_test.left == 98


def test_the_last_token_allowed_may_be_the_end() -> None:
    under_test = sequence(max_tokens=3)
    assert under_test.advance(a_round([70, 71]), 0) == (2, None)
    assert under_test.advance(a_round([EOS, 71]), 0) == (1, "stop")


def test_a_second_choice_that_came_gives_another_token_and_is_learnt_from() -> None:
    under_test = sequence()
    estimate = under_test.estimates.alternatives
    assert estimate is not None
    outcome = a_round([70, 71, 72, 73], accepted=1, came=1)
    assert under_test.advance(outcome, 0) == (3, None)
    before = estimate.rates()
    under_test.learn(outcome, 0, NOTHING)
    after = estimate.rates()
    assert after[0] < before[0]
    assert after[1] > before[1]


def test_what_a_draft_stopped_before_is_not_held_for_refused() -> None:
    under_test = sequence()
    before = under_test.estimates.drafted.rates()
    under_test.learn(a_round([70, 71], accepted=1), 0, NOTHING)
    after = under_test.estimates.drafted.rates()
    assert after[0] > before[0]
    assert after[1:].tolist() == before[1:].tolist(), "one was drafted, and it was right"
