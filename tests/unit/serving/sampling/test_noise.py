import torch
from scipy.stats import kstest

from hotdraft.serving.sampling.noise import NoiseStream, uniform


def test_uniform_in_each_direction() -> None:
    one_seed = uniform(torch.tensor([5]), torch.arange(50_000), NoiseStream.DRAFT)
    one_position = uniform(torch.arange(50_000), torch.tensor([5]), NoiseStream.ACCEPT)
    for values in (one_seed, one_position):
        assert values.min() >= 0
        assert values.max() < 1
        assert kstest(values.numpy(), "uniform").pvalue > 1e-3


def test_streams_positions_and_seeds_are_uncorrelated() -> None:
    positions, seeds = torch.arange(50_000), torch.tensor([1])
    draft = uniform(seeds, positions, NoiseStream.DRAFT)
    others = [
        uniform(seeds, positions, NoiseStream.ACCEPT),
        uniform(seeds, positions + 1, NoiseStream.DRAFT),
        uniform(seeds + 1, positions, NoiseStream.DRAFT),
    ]
    for other in others:
        assert abs(torch.corrcoef(torch.stack([draft, other]))[0, 1]) < 0.02


def test_same_key_same_value_in_any_batch() -> None:
    alone = uniform(torch.tensor([[9]]), torch.tensor([[4]]), NoiseStream.RECOVER)
    batch = uniform(torch.tensor([[1], [9], [2]]), torch.arange(8)[None], NoiseStream.RECOVER)
    assert batch[1, 4] == alone[0, 0]
