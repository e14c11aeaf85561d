import torch
from scipy.stats import kstest

from hotdraft.serving.sampling.noise import Stream, uniform


def test_uniform_in_each_direction() -> None:
    one_seed = uniform(torch.tensor([5]), torch.arange(50_000), Stream.DRAFT)
    one_position = uniform(torch.arange(50_000), torch.tensor([5]), Stream.ACCEPT)
    for values in (one_seed, one_position):
        assert values.min() >= 0
        assert values.max() < 1
        assert kstest(values.numpy(), "uniform").pvalue > 1e-3


def test_streams_positions_and_seeds_are_uncorrelated() -> None:
    positions, seeds = torch.arange(50_000), torch.tensor([1])
    draft = uniform(seeds, positions, Stream.DRAFT)
    others = [
        uniform(seeds, positions, Stream.ACCEPT),
        uniform(seeds, positions + 1, Stream.DRAFT),
        uniform(seeds + 1, positions, Stream.DRAFT),
    ]
    for other in others:
        assert abs(torch.corrcoef(torch.stack([draft, other]))[0, 1]) < 0.02


def test_same_key_same_value_in_any_batch() -> None:
    alone = uniform(torch.tensor([[9]]), torch.tensor([[4]]), Stream.RECOVER)
    batch = uniform(torch.tensor([[1], [9], [2]]), torch.arange(8)[None], Stream.RECOVER)
    assert batch[1, 4] == alone[0, 0]
