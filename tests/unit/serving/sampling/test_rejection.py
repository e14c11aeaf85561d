"""The sampler's distribution is the target's, whatever the draft proposes."""

import pytest
import torch
from scipy.stats import chisquare
from torch.nn.functional import one_hot

from hotdraft.serving.messages.request import SamplingParams
from hotdraft.serving.sampling.distributions import Distributions, sample
from hotdraft.serving.sampling.logits import SamplingBatch
from hotdraft.serving.sampling.noise import NoiseStream, uniform
from hotdraft.serving.sampling.rejection import match, rejection_sample

VOCABULARY, SAMPLES, K = 6, 200_000, 2
TARGET = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05, 0.0])
DRAFTS = {
    "equal": TARGET,
    "random": torch.tensor([0.05, 0.1, 0.15, 0.2, 0.2, 0.3]),
    "nearly equal": TARGET + torch.tensor([1e-7, -1e-7, 0, 0, 0, 0]),
    "zero on the target's support": torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 1.0]),
    "one token": torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 0.0]),
}


def given(probs: torch.Tensor) -> Distributions:
    """Of probs [B, T, V]."""
    sampling = SamplingBatch.of([SamplingParams()] * len(probs), [0] * len(probs), torch.device("cpu"))
    return Distributions.of(probs.log(), sampling)


def all_of(draft_ids: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(draft_ids, dtype=torch.bool)


@pytest.mark.slow
@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS.keys())
def test_first_token_has_the_targets_distribution(draft: torch.Tensor) -> None:
    seeds = torch.arange(SAMPLES)[:, None]
    positions = torch.arange(K + 1)[None] + 7
    target_probs = TARGET.expand(SAMPLES, K + 1, VOCABULARY)
    draft_probs = draft.expand(SAMPLES, K, VOCABULARY)
    draft_ids = sample(draft_probs, uniform(seeds, positions[:, :K], NoiseStream.DRAFT))
    result = rejection_sample(
        given(target_probs),
        given(draft_probs),
        draft_ids,
        all_of(draft_ids),
        uniform(seeds, positions[:, :K], NoiseStream.ACCEPT),
        uniform(seeds, positions, NoiseStream.RECOVER),
    )
    first = torch.where(result.num_accepted > 0, draft_ids[:, 0], result.next_token)
    _assert_distributed(first, TARGET)

    # given that the first was accepted, the second token follows the target too
    again = result.num_accepted >= 1
    if again.sum() > 1000:
        second = torch.where(result.num_accepted > 1, draft_ids[:, 1], result.next_token)[again]
        _assert_distributed(second, TARGET)
    bonus = result.next_token[result.num_accepted == K]
    if len(bonus) > 1000:
        _assert_distributed(bonus, TARGET)


@pytest.mark.slow
@pytest.mark.parametrize("draft", [*DRAFTS.values(), None], ids=[*DRAFTS.keys(), "chosen"])
def test_rows_that_drafted_fewer_have_the_targets_distribution_too(draft: torch.Tensor | None) -> None:
    """What stands behind a row's drafted tokens is never taken, though it is what the target likes best."""
    seeds = torch.arange(SAMPLES)[:, None]
    positions = torch.arange(K + 1)[None] + 7
    num_drafted = seeds % (K + 1)
    if draft is None:
        draft_ids, drawn_from = (seeds // 7 % VOCABULARY).expand(-1, K), None
    else:
        draft_probs = draft.expand(SAMPLES, K, VOCABULARY)
        draft_ids = sample(draft_probs, uniform(seeds, positions[:, :K], NoiseStream.DRAFT))
        drawn_from = given(draft_probs)
    drafted = torch.arange(K) < num_drafted
    draft_ids = torch.where(drafted, draft_ids, 0)
    result = rejection_sample(
        given(TARGET.expand(SAMPLES, K + 1, VOCABULARY)),
        drawn_from,
        draft_ids,
        drafted,
        uniform(seeds, positions[:, :K], NoiseStream.ACCEPT),
        uniform(seeds, positions, NoiseStream.RECOVER),
    )
    assert (result.num_accepted <= num_drafted[:, 0]).all()
    for count in range(K + 1):
        rows = num_drafted[:, 0] == count
        accepted, following = result.num_accepted[rows], result.next_token[rows]
        _assert_distributed(torch.where(accepted > 0, draft_ids[rows, 0], following), TARGET)
        again = accepted >= 1
        if again.sum() > 1000:
            _assert_distributed(torch.where(accepted > 1, draft_ids[rows, 1], following)[again], TARGET)


def test_acceptance_is_the_overlap() -> None:
    draft = DRAFTS["random"]
    seeds, position = torch.arange(SAMPLES)[:, None], torch.tensor([[3]])
    draft_probs = draft.expand(SAMPLES, 1, VOCABULARY)
    draft_ids = sample(draft_probs, uniform(seeds, position, NoiseStream.DRAFT))
    result = rejection_sample(
        given(TARGET.expand(SAMPLES, 2, VOCABULARY)),
        given(draft_probs),
        draft_ids,
        all_of(draft_ids),
        uniform(seeds, position, NoiseStream.ACCEPT),
        uniform(seeds, torch.tensor([[3, 4]]), NoiseStream.RECOVER),
    )
    overlap = torch.minimum(TARGET, draft).sum()
    assert result.num_accepted.float().mean() == pytest.approx(overlap.item(), abs=0.005)


def test_no_draft_is_plain_sampling() -> None:
    seeds, position = torch.arange(SAMPLES)[:, None], torch.tensor([[0]])
    result = rejection_sample(
        given(TARGET.expand(SAMPLES, 1, VOCABULARY)),
        None,
        torch.zeros(SAMPLES, 0, dtype=torch.int64),
        torch.ones(SAMPLES, 0, dtype=torch.bool),
        torch.zeros(SAMPLES, 0),
        uniform(seeds, position, NoiseStream.RECOVER),
    )
    assert result.num_accepted.sum() == 0
    _assert_distributed(result.next_token, TARGET)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("k", [1, 4])
def test_matching_is_rejection_sampling_of_one_hots(k: int, ragged: bool) -> None:
    rows, generator = 300, torch.Generator().manual_seed(k)
    target_ids = torch.randint(3, (rows, k + 1), generator=generator)
    draft_ids = torch.randint(3, (rows, k), generator=generator)
    drafted = (
        torch.arange(k) < torch.randint(k + 1, (rows, 1), generator=generator) if ragged else all_of(draft_ids)
    )
    result = match(target_ids, draft_ids, drafted)
    expected = rejection_sample(
        given(one_hot(target_ids, 3).float()),
        given(one_hot(draft_ids, 3).float()),
        draft_ids,
        drafted,
        torch.rand(rows, k, generator=generator, dtype=torch.float64),
        torch.rand(rows, k + 1, generator=generator, dtype=torch.float64),
    )
    assert torch.equal(result.num_accepted, expected.num_accepted)
    assert torch.equal(result.next_token, expected.next_token)
    assert set(result.num_accepted.tolist()) == set(range(k + 1)), "every outcome came up"


def test_the_check_has_teeth() -> None:
    """Draft tokens taken unverified do not pass for the target's."""
    noise = uniform(torch.arange(SAMPLES), torch.tensor([0]), NoiseStream.DRAFT)
    unverified = sample(DRAFTS["random"].expand(SAMPLES, VOCABULARY), noise).clamp_max(4)
    with pytest.raises(AssertionError):
        _assert_distributed(unverified, TARGET)


def _assert_distributed(tokens: torch.Tensor, probs: torch.Tensor) -> None:
    counts = torch.bincount(tokens, minlength=VOCABULARY)
    assert counts[probs == 0].sum() == 0
    support = probs > 0
    expected = probs[support].double()
    expected = expected / expected.sum() * len(tokens)
    assert chisquare(counts[support].double(), expected).pvalue > 1e-4
