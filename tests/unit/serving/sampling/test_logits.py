import pytest
import torch
from transformers.generation.logits_process import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from hotdraft.serving.messages.request import SamplingParams
from hotdraft.serving.sampling.distributions import Distributions, sample
from hotdraft.serving.sampling.logits import SamplingBatch
from hotdraft.serving.sampling.rejection import rejection_sample
from tests.unit.served_probs import served_probs


def batch(*params: SamplingParams) -> SamplingBatch:
    return SamplingBatch.of(params, list(range(len(params))), torch.device("cpu"))


@pytest.mark.parametrize(
    ("params", "warpers"),
    [
        (SamplingParams(temperature=0.7), [TemperatureLogitsWarper(0.7)]),
        (SamplingParams(temperature=1.0, top_k=5), [TopKLogitsWarper(5)]),
        (SamplingParams(temperature=1.0, top_p=0.8), [TopPLogitsWarper(0.8)]),
        (SamplingParams(temperature=1.0, min_p=0.1), [MinPLogitsWarper(0.1)]),
        (
            SamplingParams(temperature=1.3, top_k=10, top_p=0.7),
            [TemperatureLogitsWarper(1.3), TopKLogitsWarper(10), TopPLogitsWarper(0.7)],
        ),
        (SamplingParams(epsilon_cutoff=0.02), [EpsilonLogitsWarper(0.02)]),
        (SamplingParams(eta_cutoff=0.05), [EtaLogitsWarper(0.05, device="cpu")]),
        (
            SamplingParams(temperature=1.3, top_p=0.9, epsilon_cutoff=0.01, eta_cutoff=0.2),
            [
                TemperatureLogitsWarper(1.3),
                TopPLogitsWarper(0.9),
                EpsilonLogitsWarper(0.01),
                EtaLogitsWarper(0.2, device="cpu"),
            ],
        ),
    ],
)
def test_agrees_with_transformers(params: SamplingParams, warpers: list) -> None:
    logits = torch.randn(1, 3, 50, generator=torch.Generator().manual_seed(0)) * 3
    expected = logits[0].clone()
    for warper in warpers:
        expected = warper(None, expected)
    torch.testing.assert_close(served_probs(logits, batch(params))[0], expected.softmax(-1))


def test_rows_keep_their_own_parameters() -> None:
    logits = torch.randn(4, 2, 1000, generator=torch.Generator().manual_seed(0)) * 3
    each = [SamplingParams(temperature=0.5, top_k=3), SamplingParams(temperature=0.7), SamplingParams(top_p=0.6)]
    mixed = served_probs(logits, batch(SamplingParams(temperature=0), *each))
    for row, params in enumerate(each, start=1):
        torch.testing.assert_close(mixed[row : row + 1], served_probs(logits[row : row + 1], batch(params)))
    assert (mixed[1] > 0).sum(-1).tolist() == [3, 3]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("params", [{}, {"top_p": 0.9}, {"seed": 3}, {"seed": 3, "top_k": 5}, {"temperature": 0}])
def test_whatever_the_logits_are_a_token_comes(params: dict, bad: float) -> None:
    logits = torch.randn(2, 3, 700, generator=torch.Generator().manual_seed(0))
    logits[0], logits[1, 1, 5] = bad, bad
    sampling, positions = batch(*[SamplingParams(**params)] * 2), torch.arange(3).expand(2, 3)
    given = Distributions.of(logits, sampling)
    if sampling.all_chosen:
        found = given.choose(sampling, positions)
        assert found.min() >= 0
        assert found.max() < 700
    else:
        draft, noise = Distributions.of(logits[:, :2], sampling), torch.full((2, 3), 1 - 2.0**-52).double()
        for drafted in (draft, None):
            ids = torch.full((2, 2 if drafted else 0), 5)
            result = rejection_sample(
                given, drafted, ids, torch.ones_like(ids).bool(), noise[:, : ids.shape[1]], noise
            )
            assert result.next_token.min() >= 0
            assert result.next_token.max() < 700


def test_sampling_never_draws_a_token_of_probability_zero() -> None:
    probs = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0]).expand(3, 5)
    noise = torch.tensor([0.0, 0.5, 1 - 2.0**-52], dtype=torch.float64)
    assert sample(probs, noise).tolist() == [1, 3, 3]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -1.0),
        ("top_k", -2),
        ("top_p", 0.0),
        ("min_p", 1.0),
        ("stop", ("",)),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("frequency_penalty", float("nan")),
        ("logprobs", -1),
        ("prompt_logprobs", 21),
    ],
)
def test_bad_parameters_are_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        SamplingParams(**{field: value})


def test_a_temperature_too_small_to_divide_by_is_greedy() -> None:
    assert SamplingParams(temperature=1e-38).temperature == 0
    assert SamplingParams(temperature=1e-4).temperature == 1e-4
    with pytest.raises(ValueError, match="top_k must be 0"):
        SamplingParams(top_k=2**31)
