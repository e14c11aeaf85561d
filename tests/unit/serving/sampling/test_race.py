"""The race's winners are distributed as asked, and two models that share its noise mostly agree."""

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from hotdraft.serving.sampling import race as module
from hotdraft.serving.sampling.race import race, race_keys

SEEDS = 40_000
VOCABULARY = 100
"""More than three groups, the last of them not full."""


def winners(probs: Tensor, temperature: float = 1.0, kept: tuple[Tensor, Tensor] | None = None) -> Tensor:
    keys = race_keys(torch.arange(SEEDS), torch.tensor([[7]])).view(-1, 1)
    logits = (probs.log() * temperature).expand(SEEDS, -1)
    return race(logits, torch.full((SEEDS, 1), temperature), keys, kept)


def uneven(seed: int, spread: float) -> Tensor:
    return (torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed)) * spread).softmax(-1)


@pytest.mark.slow
@pytest.mark.parametrize("look", [1, 2, 32])
@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0])
def test_winners_are_distributed_as_asked(spread: float, look: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_LOOK", look)
    monkeypatch.setattr(module, "GROWTH", 2)
    probs = uneven(1, spread)
    counts = winners(probs, temperature=0.6).bincount(minlength=VOCABULARY)
    expected = probs.double() / probs.double().sum() * SEEDS
    likely = expected >= 5
    observed = [*counts[likely].tolist(), int(counts[~likely].sum())]
    wanted = [*expected[likely].tolist(), float(expected[~likely].sum())]
    kinds = len(wanted) if wanted[-1] > 0 else -1
    assert chisquare(observed[:kinds], wanted[:kinds]).pvalue > 1e-4


def test_a_look_at_a_few_groups_finds_what_a_look_at_all_does(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, vocabulary = 300, 5000
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(rows, vocabulary, generator=generator) * torch.linspace(0, 6, rows)[:, None]
    keys = race_keys(torch.arange(rows), torch.tensor([[3]])).view(-1, 1)
    kept = logits.topk(40).values[:, -1:].clone(), torch.full((rows, 1), vocabulary - 1)
    kept[0][::2] = -torch.inf
    found = []
    for look in (1, 8, 32, 10_000):
        monkeypatch.setattr(module, "FIRST_LOOK", look)
        found.append(race(logits, torch.full((rows, 1), 0.8), keys, kept))
    assert all(torch.equal(each, found[-1]) for each in found)
    assert (logits.gather(1, found[0][:, None]) >= kept[0]).all()


@pytest.mark.slow
def test_two_models_agree_as_often_as_theory_says() -> None:
    target, draft = uneven(1, 2.0), (uneven(1, 2.0) + uneven(2, 2.0)) / 2
    agreement = (winners(target) == winners(draft)).float().mean().item()
    ratios = torch.maximum(target[None] / target[:, None], draft[None] / draft[:, None])
    assert agreement == pytest.approx((1 / ratios.sum(1)).sum().item(), abs=0.01)
    overlap = torch.minimum(target, draft).sum().item()
    assert overlap / (2 - overlap) < agreement < overlap


def test_neighbouring_seeds_and_positions_race_independently() -> None:
    probs = uneven(3, 0.0)
    seeds, positions = torch.arange(20_000), torch.tensor([[4, 5]])
    keys = race_keys(seeds, positions)
    first, second = (race(probs.log().expand(20_000, -1), torch.ones(20_000, 1), k[:, None], None) for k in keys.T)
    chance = 1 / VOCABULARY
    for one, other in ((first, second), (first[1:], first[:-1])):
        assert (one == other).float().mean().item() == pytest.approx(chance, abs=0.004)
