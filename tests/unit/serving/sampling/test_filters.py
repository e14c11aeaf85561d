"""A look at the likeliest few keeps what a sort of the whole vocabulary would."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hotdraft.serving.messages.request import SamplingParams
from hotdraft.serving.sampling import filters
from hotdraft.serving.sampling.distributions import Distributions
from hotdraft.serving.sampling.logits import SamplingBatch

LENGTH = 3
VOCABULARY = 1504


def sorted_whole(logits: Tensor, params: SamplingParams) -> Tensor:
    """Probabilities [V] of logits [V], from all of them sorted."""
    scaled = logits.double() / params.temperature
    _, order = logits.sort(dim=-1, descending=True, stable=True)
    ordered = scaled.gather(-1, order)
    rank = torch.arange(logits.shape[-1])
    ordered = ordered.masked_fill(rank >= (params.top_k or len(rank)), -torch.inf)
    probs = ordered.softmax(-1)
    dropped = (probs.cumsum(-1) - probs >= params.top_p) | (probs < params.min_p * probs[:1])
    dropped[0] = False
    left = ordered.masked_fill(dropped, -torch.inf)
    for bound in (lambda _: params.epsilon_cutoff, lambda probs: eta_of(probs, params.eta_cutoff)):
        probs = left.softmax(-1)
        dropped = probs < bound(probs)
        dropped[0] = False
        left = left.masked_fill(dropped, -torch.inf)
    return torch.empty_like(scaled).scatter_(-1, order, left).softmax(-1).float()


def eta_of(probs: Tensor, eta: float) -> float:
    return min(eta, eta**0.5 * torch.special.entr(probs).sum().neg().exp().item())


def nearly(params: SamplingParams) -> list[SamplingParams]:
    """Float32 sums decide as these do."""
    return [replace(params, top_p=min(params.top_p + error, 1.0)) for error in (0, -2e-6, 2e-6)]


def close(found: Tensor, expected: Tensor) -> bool:
    return torch.allclose(found, expected, atol=3e-6, rtol=1e-4)


def cases() -> list[SamplingParams]:
    top_ps, min_ps = (0.03, 0.55, 0.9001, 0.99999, 1.0), (0.0, 0.02, 0.6)
    every = itertools.product((0, 1, 4, 8, 9, 100, 5000), top_ps, min_ps, (0.7, 3.0))
    plain = [SamplingParams(top_k=k, top_p=p, min_p=least, temperature=t) for k, p, least, t in every]
    cut = itertools.product((0, 9, 100, 5000), (0.9001, 1.0), (0.0, 0.02), (0.0, 3e-4, 0.03), (0.0, 2e-3, 0.1))
    return plain + [
        SamplingParams(top_k=k, top_p=p, min_p=least, epsilon_cutoff=epsilon, eta_cutoff=eta)
        for k, p, least, epsilon, eta in cut
        if epsilon or eta
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["distinct", "ties", "flat", "peaked"])
@pytest.mark.parametrize("looks", [(8, 32, 128), (256, 2048), (VOCABULARY,), ()])
def test_the_distribution_is_that_of_a_full_sort(
    kind: str, looks: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters, "LOOKS", looks)
    params = cases()
    logits = torch.randn(len(params), LENGTH, VOCABULARY, generator=torch.Generator().manual_seed(4))
    if kind == "ties":
        logits = (2 * logits).round() / 2
    else:
        logits *= {"distinct": 1, "flat": 0.01, "peaked": 8}[kind]
    # greedy and unfiltered rows in between change nothing
    mixed = [p for each in params for p in (each, SamplingParams(temperature=0), SamplingParams(temperature=0.9))]
    sampling = SamplingBatch.of(mixed, range(len(mixed)), torch.device("cpu"))
    found = Distributions.of(logits.repeat_interleave(3, 0), sampling)
    for position in range(LENGTH):
        probs = found.probs_at(torch.full((len(mixed),), position))
        for row, each in enumerate(params):
            assert any(close(probs[3 * row], sorted_whole(logits[row, position], p)) for p in nearly(each)), each
            plain = (logits[row, position] / 0.9).softmax(-1)
            torch.testing.assert_close(probs[3 * row + 2], plain, atol=1e-6, rtol=1e-4)


ALONE = [{"top_p": 0.55}, {"min_p": 0.3}, {"top_p": 0.8, "min_p": 0.05}]
CUT = [{"epsilon_cutoff": 1e-4}, {"epsilon_cutoff": 0.01}, {"eta_cutoff": 1e-3}]


@pytest.mark.parametrize("top_k", [0, 700, 5000])
@pytest.mark.parametrize("others", ALONE + CUT, ids=str)
def test_a_row_alone_is_filtered_as_among_others(top_k: int, others: dict[str, float]) -> None:
    params = SamplingParams(top_k=top_k, **others)
    logits = 2 * torch.randn(1, 1, VOCABULARY, generator=torch.Generator().manual_seed(8))
    found = Distributions.of(logits, SamplingBatch.of([params], [0], torch.device("cpu")))
    assert close(found.probs_at(torch.zeros(1, dtype=torch.int64))[0], sorted_whole(logits[0, 0], params))


def test_only_rows_that_a_look_does_not_decide_are_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[tuple[int, int]] = []
    largest = filters._largest

    def noted(logits: Tensor, size: int) -> tuple[Tensor, Tensor]:
        looks.append((len(logits), size))
        return largest(logits, size)

    monkeypatch.setattr(filters, "_largest", noted)
    logits = torch.randn(6, 2, 20_000, generator=torch.Generator().manual_seed(0))
    logits[:5] *= 8
    params = [SamplingParams(top_p=0.9), SamplingParams(top_k=40), SamplingParams(top_k=50, top_p=0.8)] * 2
    Distributions.of(logits, SamplingBatch.of(params, range(6), torch.device("cpu")))
    assert looks == [(12, 256)], "top-k decides the flat row"
    looks.clear()
    Distributions.of(logits, SamplingBatch.of(params[:1] * 6, range(6), torch.device("cpu")))
    assert looks == [(12, 256), (2, 2048)], "and then all of the flat row is sorted"


def test_of_equal_logits_the_smaller_ids_are_kept() -> None:
    sampling = SamplingBatch.of([SamplingParams(top_k=5)], [0], torch.device("cpu"))
    logits = torch.zeros(1, 1, 2000)
    logits[..., 1234] = 1.0
    probs = Distributions.of(logits, sampling).probs_at(torch.zeros(1, dtype=torch.int64))
    assert probs[0].nonzero().squeeze(1).tolist() == [0, 1, 2, 3, 1234]


def test_probabilities_of_single_tokens_are_those_of_the_whole() -> None:
    params = [SamplingParams(top_p=0.8), SamplingParams(temperature=0.6), SamplingParams(top_k=7, min_p=0.1)]
    sampling = SamplingBatch.of(params, range(3), torch.device("cpu"))
    generator = torch.Generator().manual_seed(1)
    known = torch.randperm(900, generator=generator)[:400].sort().values
    for vocabulary, size in ((None, 400), (known, 900)):
        found = Distributions.of(torch.randn(3, 2, 400, generator=generator) * 3, sampling, vocabulary, size)
        token_ids = (torch.arange(400) if vocabulary is None else vocabulary)[torch.randint(400, (50, 3, 2))]
        for ids in token_ids:
            probs = torch.stack([found.probs_at(torch.full((3,), position)) for position in (0, 1)], 1)
            assert torch.equal(found.probs_of(ids) > 0, probs.gather(-1, ids[..., None]).squeeze(-1) > 0)
            torch.testing.assert_close(found.probs_of(ids), probs.gather(-1, ids[..., None]).squeeze(-1))
