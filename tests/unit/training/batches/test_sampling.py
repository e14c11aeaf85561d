import numpy as np
import pytest
import torch

from hotdraft.serving.messages.request import SamplingParams
from hotdraft.serving.sampling.logits import SamplingBatch
from hotdraft.training.batches.sampling import (
    LIKELIEST,
    Sampling,
    lowest_drafted,
    sampled_target,
    tail_at,
    unfiltered,
)
from tests.unit.served_probs import served_probs

VOCABULARY = 2000
FILTERS = [
    {},
    {"top_p": 0.9},
    {"top_p": 0.3},
    {"top_k": 1},
    {"top_k": 20},
    {"top_k": 700},
    {"top_k": 700, "top_p": 0.95},
    {"min_p": 0.05},
    {"top_p": 0.95, "top_k": 40, "min_p": 0.02},
]


@pytest.fixture
def logits():
    """Rows from peaked to flat, so flat that top-p keeps more than what is looked at first."""
    torch.manual_seed(0)
    spread = torch.linspace(0.3, 6, 40)[:, None]
    return torch.randn(40, VOCABULARY) * spread


def of(count, temperature, top_p=1.0, top_k=0, min_p=0.0):
    return Sampling(*(torch.full((count,), value) for value in (temperature, top_p, top_k, min_p)))


def served(logits, temperature, **filters):
    """What the server draws from."""
    params = [SamplingParams(temperature=temperature, **filters)] * len(logits)
    return served_probs(logits[:, None], SamplingBatch.of(params, [0] * len(logits), torch.device("cpu")))[:, 0]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("temperature", [0.4, 1.0, 1.5])
def test_a_draft_drafts_what_the_server_lets_it(logits, temperature, filters):
    lowest = lowest_drafted(logits, of(40, temperature, **filters))
    probs = served(logits, temperature, **filters)
    if not filters:
        assert lowest is None
        return
    drafted = (logits / temperature).masked_fill(logits / temperature < lowest[:, None], -torch.inf).softmax(-1)
    torch.testing.assert_close(drafted, probs, rtol=1e-4, atol=1e-6)  # a token at the edge may round over it


def test_the_flat_rows_take_more_than_what_is_looked_at_first(logits):
    assert ((served(logits, 1.0, top_p=0.9) > 0).sum(-1) > LIKELIEST).any()


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("temperature", [0.4, 1.0])
def test_a_target_logged_by_its_likeliest_is_what_the_server_drew_from(logits, temperature, filters):
    """Exactly where the filters keep to what was logged, and else nearly."""
    top, ids = logits.log_softmax(-1).topk(64)
    tail = torch.log1p(-top.exp().sum(-1).clamp_max(1 - 1e-7))
    top, tail = sampled_target(top, tail, of(40, temperature, **filters), VOCABULARY)
    probs = served(logits, temperature, **filters)
    torch.testing.assert_close(top.exp().sum(-1) + tail.exp(), torch.ones(40))
    outside = 1 - probs.gather(1, ids).sum(-1)
    if filters.get("top_k", 100) <= 64:
        torch.testing.assert_close(top.exp(), probs.gather(1, ids), rtol=1e-3, atol=1e-6)
        assert not tail.exp().any()
    if temperature == 1 and "top_k" not in filters and "min_p" not in filters:
        torch.testing.assert_close(tail.exp(), outside, rtol=0, atol=2e-3)
        torch.testing.assert_close(top.exp(), probs.gather(1, ids), rtol=0, atol=2e-3)


def test_greedy_requests_have_no_filters(logits):
    greedy = of(40, 0.0, top_p=0.5, top_k=3, min_p=0.5)
    assert lowest_drafted(logits, greedy) is None
    top, _ = logits.log_softmax(-1).topk(VOCABULARY)
    torch.testing.assert_close(sampled_target(top, torch.full((40,), -30.0), greedy, VOCABULARY)[0], top)


@pytest.mark.parametrize("temperature", [0.3, 0.5, 0.7, 0.9, 1.2, 1.5, 2.0])
@pytest.mark.parametrize("exponent", [1.05, 1.3, 2.0])
def test_the_tail_at_another_temperature_lies_between_its_bounds_and_near_the_truth(temperature, exponent):
    """Of Zipf's tails, as language has them, over the ranks of a real vocabulary."""
    unseen, kept = 50_000, 64
    masses = np.arange(kept + 1, kept + unseen + 1) ** -exponent / 10
    least = torch.tensor([kept**-exponent / 10]).double().log()
    tail = torch.tensor([masses.sum()]).log()
    heat = torch.tensor([temperature]).double()
    truth = (masses ** (1 / temperature)).sum()
    estimate = tail_at(heat, least, tail, unseen).exp().item()
    spread = unseen * (masses.sum() / unseen) ** (1 / temperature)
    gathered = masses.sum() * least.exp().item() ** (1 / temperature - 1)
    assert min(spread, gathered) <= truth <= max(spread, gathered) * (1 + 1e-9)
    assert min(spread, gathered) <= estimate <= max(spread, gathered)
    top = (np.arange(1, kept + 1) ** -exponent / 10) ** (1 / temperature)
    as_one_token = masses.sum() ** (1 / temperature)
    share, of_one_token, true_share = (mass / (mass + top.sum()) for mass in (estimate, as_one_token, truth))
    assert share == pytest.approx(true_share, abs=0.12)
    assert abs(share - true_share) < abs(of_one_token - true_share)


def test_at_temperature_1_the_tail_is_what_was_logged():
    tail = torch.tensor([-0.1, -5.0, -30.0, -torch.inf])
    least = torch.tensor([-6.0, -9.0, -40.0, -7.0])
    torch.testing.assert_close(tail_at(torch.ones(4), least, tail, 50_000), tail)
    assert sampled_target(least[:, None], tail, unfiltered(torch.full((4,), 0.2)), 1)[0].isfinite().all()
