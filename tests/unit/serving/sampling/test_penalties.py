"""Penalties: the arithmetic, and that speculation gives what penalising step by step gives."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import RepetitionPenaltyLogitsProcessor

from hotdraft.pipeline.models.loading import load_causal_lm
from hotdraft.serving.messages.request import SamplingParams
from hotdraft.serving.proposers.plan import ProposalPlan
from hotdraft.serving.sampling.logits import SamplingBatch, Withheld
from hotdraft.serving.sampling.penalties import IN_PROMPT, AnswerTokens, penalise
from tests.unit.serving.decoders import (
    GREEDY,
    NEW_TOKENS,
    PROMPTS,
    batch,
    greedy_reference,
    make_decoder,
    run,
    start,
)

PARAMS = [
    SamplingParams(temperature=0, presence_penalty=2.0, frequency_penalty=1.0),
    GREEDY,
    SamplingParams(temperature=0, frequency_penalty=0.5, repetition_penalty=1.3),
    SamplingParams(
        temperature=0,
        presence_penalty=-1.5,
        repetition_penalty=1.1,
        logit_bias=((3, 1.5), (40, -100.0), (201, 2.0)),
    ),
]
"""One for each of `PROMPTS`."""


def positions(length: int) -> torch.Tensor:
    """Some, which matter to nothing but what is withheld."""
    return torch.zeros(len(PARAMS), length, dtype=torch.int64)


def test_counting() -> None:
    token_ids = torch.tensor([[3, 3, 1, 3, 0, 0], [2, 2, 2, 1, 4, 0]])
    counts = AnswerTokens(token_ids, torch.tensor([[1], [3]]), torch.tensor([[4], [3]]), 5).counts()
    assert counts.tolist() == [[0, 1, 0, 2, 0], [0, 0, 0, 0, 0]]


def test_a_token_of_the_prompt_counts_less_than_once_and_only_where_repetition_is_penalised() -> None:
    answers = AnswerTokens(torch.tensor([[3, 3, 1, 3, 0, 0]]), torch.tensor([[2]]), torch.tensor([[4]]), 5)
    counts = answers.penalised_counts(batch([SamplingParams(repetition_penalty=1.1)]))
    assert counts is not None
    assert counts.tolist() == [[0, 1, 0, 1.5, 0]]
    unheeded = answers.penalised_counts(batch([SamplingParams(presence_penalty=1.0)]))
    assert torch.equal(unheeded, answers.counts())


@pytest.mark.parametrize("k", [0, 1, 6])
def test_what_was_drafted_is_penalised_as_if_all_were_counted_at_each_position(k: int) -> None:
    generator = torch.Generator().manual_seed(k)
    logits = torch.randn(len(PARAMS), k + 1, 250, generator=generator)
    drafted_ids = torch.randint(40, 44, (len(PARAMS), k), generator=generator)
    counts = torch.randint(0, 4, (len(PARAMS), 250), generator=generator).float()
    counts += IN_PROMPT * torch.randint(0, 2, counts.shape, generator=generator)
    sampling = batch(PARAMS)
    drafted = F.one_hot(drafted_ids, 250).cumsum(1)
    penalised = penalise(logits, positions(k + 1), counts, sampling, drafted_ids)
    for position in range(k + 1):
        came = counts if position == 0 else counts + drafted[:, position - 1]
        alone = penalise(logits[:, position : position + 1], positions(1), came, sampling)
        assert torch.equal(penalised[:, position : position + 1], alone), "as the draft is, to the bit"
        wanted = logits[:, position].clone()
        for row, params in enumerate(PARAMS):
            for token, bias in params.biases:
                wanted[row, token] += bias
            wanted[row] = repetition_penalised(wanted[row], came[row].nonzero()[:, 0], params)
            answered = came[row].floor()
            wanted[row] -= params.frequency_penalty * answered + params.presence_penalty * (answered > 0)
        torch.testing.assert_close(alone[:, 0], wanted)


@pytest.mark.parametrize("some", [{"presence_penalty": 0.5}, {"logit_bias": ((3, 1.0),)}], ids=str)
def test_a_penalty_costs_one_pass_over_the_logits(some: dict[str, Any]) -> None:
    """All who are answered in the same round pay for it."""
    logits, drafted_ids = torch.randn(4, 9, 1000), torch.arange(32).view(4, 8)
    sampling = batch([SamplingParams(**some), GREEDY, GREEDY, GREEDY])
    answers = AnswerTokens(torch.arange(80).view(4, 20), torch.zeros(4, 1), torch.full((4, 1), 20), 1000)
    counts = answers.penalised_counts(sampling)
    assert (counts is None) == ("logit_bias" in some), "a bias asks for no counts"
    with Written() as written:
        penalise(logits, positions(9), counts, sampling, drafted_ids)
    assert [size for size in written.sizes if size > logits[:, 0].numel()] == [logits.numel()]


class Written(TorchDispatchMode):
    """Notes how many elements each operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view and not func._schema.is_mutable:
            self.sizes.append(result.numel())
        return result


def test_the_formula_and_that_other_rows_are_left_alone() -> None:
    logits = torch.randn(2, 1, 4)
    counts = torch.tensor([[0.0, 1.0, 3.0, 0.0]] * 2)
    sampling = batch([SamplingParams(presence_penalty=0.5, frequency_penalty=-0.25), SamplingParams()])
    assert sampling.any_penalised
    penalised = penalise(logits, positions(1), counts, sampling)
    expected = logits[0, 0] - torch.tensor([0, 0.5 - 0.25, 0.5 - 0.75, 0])
    torch.testing.assert_close(penalised[0, 0], expected)
    assert torch.equal(penalised[1], logits[1])


def test_a_bias_is_added_to_the_logits_of_its_row_and_to_those_that_a_draft_knows() -> None:
    params = [SamplingParams(), SamplingParams(logit_bias=((1, 2.5), (3, -100.0), (5, 1.0)))]
    sampling, zeros = batch(params), torch.zeros(2, 3, 6)
    assert sampling.any_penalised
    biased = penalise(zeros, positions(3), None, sampling)
    assert not biased[0].any()
    assert biased[1].tolist() == [[0, 2.5, 0, -100, 0, 1]] * 3
    assert sampling.biased is not None
    assert [len(column) for column in sampling.biased] == [4] * 4, "few shapes for any number of tokens"
    known = penalise(zeros[..., :2], positions(3), None, sampling, vocabulary=torch.tensor([3, 4]))
    assert known[1].tolist() == [[-100, 0]] * 3, "of what it does not know nothing is added anywhere"


def test_what_is_withheld_has_no_chance_before_its_position_and_its_own_from_there_on() -> None:
    params = [
        SamplingParams(),
        SamplingParams(temperature=0.5, logit_bias={1: 100.0}),
        SamplingParams(temperature=0),
    ]
    held = [None, Withheld(frozenset({1, 3}), 12), Withheld(frozenset({0, 1, 2, 3}), 11)]
    sampling = SamplingBatch.of(params, [0, 1, 2], torch.device("cpu"), held)
    assert sampling.any_penalised
    logits = torch.randn(3, 4, 4)
    penalised = penalise(logits, torch.arange(10, 14).expand(3, -1), None, sampling)
    assert torch.equal(penalised[0], logits[0])
    probs = (penalised[1] / 1e-5).softmax(-1)
    assert not probs[:2, [1, 3]].any()
    assert probs[2:, 1].tolist() == [1, 1], "the bias holds again"
    assert penalised[2].isfinite().all(), "where all is withheld, something comes"
    assert torch.equal(penalised[2, 1:], logits[2, 1:])


def repetition_penalised(logits: torch.Tensor, came: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """As transformers does it to logits [V], of tokens [L] that came."""
    return RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(came[None], logits[None])[0]


@torch.inference_mode()
def penalised_reference(target: str) -> list[list[int]]:
    """The likeliest token after penalties, one forward a token."""
    model = load_causal_lm(target)
    outputs: list[list[int]] = []
    for prompt, params in zip(PROMPTS, PARAMS, strict=True):
        output: list[int] = []
        for _ in range(NEW_TOKENS):
            logits = model(torch.tensor([prompt + output])).logits[0, -1].float()
            for token, bias in params.logit_bias:
                logits[token] += bias
            logits = repetition_penalised(logits, torch.tensor(prompt + output), params)
            for token, count in Counter(output).items():
                logits[token] -= params.presence_penalty + params.frequency_penalty * count
            output.append(int(logits.argmax()))
        outputs.append(output)
    return outputs


@pytest.fixture(scope="module")
def reference(tiny_target: str) -> list[list[int]]:
    """It differs from the unpenalised answers, except in the row that has no penalty."""
    penalised, plain = penalised_reference(tiny_target), greedy_reference(tiny_target, PROMPTS)
    assert [ours == theirs for ours, theirs in zip(penalised, plain, strict=True)] == [False, True, False, False]
    return penalised


@pytest.mark.parametrize("ks", [[0], [1], [4], [3, 0, 0, 2, 1, 0, 4]], ids=str)
@pytest.mark.parametrize("draft", ["other", "itself", "trimmed"])
def test_greedy_equals_penalising_step_by_step(
    tiny_target: str, tiny_draft: str, reference: list[list[int]], ks: list[int], draft: str
) -> None:
    decoder = make_decoder(
        tiny_target,
        tiny_draft if draft == "other" else tiny_target,
        draft_vocabulary=torch.arange(0, 257, 2) if draft == "trimmed" else None,
    )
    start(decoder, PROMPTS)
    assert run(decoder, ks, batch(PARAMS), len(PROMPTS)) == reference


@pytest.mark.parametrize("sampled", [False, True])
def test_a_draft_that_is_the_target_is_penalised_alike(tiny_target: str, sampled: bool) -> None:
    """It is always accepted only if its counts at each position of a round are the target's."""
    params = SamplingParams(temperature=0.5 if sampled else 0, presence_penalty=1.0, frequency_penalty=2.0, top_k=5)
    decoder = make_decoder(tiny_target, tiny_target)
    start(decoder, PROMPTS)
    for k in (3, 0, 4, 2, 1, 4):
        outcome = decoder.round(ProposalPlan.uniform(len(PROMPTS), k), batch([params] * len(PROMPTS)), log=False)
        assert outcome.num_accepted.tolist() == [k] * len(PROMPTS)


def test_so_is_one_that_knows_only_what_is_said(tiny_target: str, reference: list[list[int]]) -> None:
    said = torch.tensor(sorted({token for output in reference for token in output}))
    decoder = make_decoder(tiny_target, tiny_target, draft_vocabulary=said)
    start(decoder, PROMPTS)
    for k in (3, 0, 4, 2, 1, 4):
        outcome = decoder.round(ProposalPlan.uniform(len(PROMPTS), k), batch(PARAMS), log=False)
        assert outcome.num_accepted.tolist() == [k] * len(PROMPTS)


def test_counts_follow_a_request_to_another_slot(tiny_target: str, tiny_draft: str, reference) -> None:
    decoder = make_decoder(tiny_target, tiny_draft)
    start(decoder, PROMPTS)
    first = decoder.round(ProposalPlan.uniform(4, 2), batch(PARAMS), log=False)
    for kept in (2, 3):
        decoder.move(kept, kept - 2)
    said = [first.token_ids[row, : first.num_accepted[row] + 1].tolist() for row in (2, 3)]
    outputs = run(decoder, [2], batch(PARAMS[2:]), 2)
    assert [(a + b)[:NEW_TOKENS] for a, b in zip(said, outputs, strict=True)] == reference[2:]


def test_the_log_is_unpenalised(tiny_target: str, tiny_draft: str) -> None:
    logs = []
    for params in (PARAMS[0], GREEDY):
        decoder = make_decoder(tiny_target, tiny_draft)
        start(decoder, [PROMPTS[2]])
        decoder.round(ProposalPlan.uniform(1, 0), batch([GREEDY]), log=False)
        outcome = decoder.round(ProposalPlan.uniform(1, 0), batch([params]), log=True)
        assert outcome.target_log is not None
        logs.append(outcome.target_log)
    np.testing.assert_array_equal(logs[0].top_ids, logs[1].top_ids)
    np.testing.assert_array_equal(logs[0].top_logprobs, logs[1].top_logprobs)
