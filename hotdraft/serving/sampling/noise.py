"""Uniform noise keyed by (seed, position, stream): the same in whatever batch a request runs.

A counter-based generator in the manner of Salmon et al., "Parallel Random Numbers: As Easy as
1, 2, 3" (2011), with SplitMix64's finaliser (Steele et al., 2014) as the mixing function.
"""

from enum import IntEnum

import torch

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as int64


class NoiseStream(IntEnum):
    """The independent draws of one position."""

    DRAFT = 1
    ACCEPT = 2
    RECOVER = 3
    RACE = 4
    """The key of a race between tokens, from which these three come:"""
    GROUP = 5
    FIRST = 6
    TOKEN = 7


def random_bits(seeds: torch.Tensor, counters: torch.Tensor, stream: NoiseStream) -> torch.Tensor:
    """int64, all of its 64 bits random, of the broadcast shape of int64 `seeds` and `counters`."""
    state = _mix(seeds + _wrapped(int(stream) * _GOLDEN))
    return _mix(state + counters * _GOLDEN)


def uniform(seeds: torch.Tensor, positions: torch.Tensor, stream: NoiseStream) -> torch.Tensor:
    """float64 in [0, 1), 52 bits, of the broadcast shape of int64 `seeds` and `positions`.

    52 bits, so that the product with any float64 total stays below that total.
    """
    return _shift_right(random_bits(seeds, positions, stream), 12).double() * 2.0**-52


def exponential(seeds: torch.Tensor, counters: torch.Tensor, stream: NoiseStream) -> torch.Tensor:
    """float64 above 0, exponentially distributed with mean 1, of the shape of `uniform`."""
    return (uniform(seeds, counters, stream) + 2.0**-53).log().neg()


def _wrapped(value: int) -> int:
    """`value` as int64 arithmetic would have it."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _mix(value: torch.Tensor) -> torch.Tensor:
    value = (value ^ _shift_right(value, 30)) * -4658895280553007687  # 0xBF58476D1CE4E5B9
    value = (value ^ _shift_right(value, 27)) * -7723592293110705685  # 0x94D049BB133111EB
    return value ^ _shift_right(value, 31)


def _shift_right(value: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift: torch's `>>` on int64 copies the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
