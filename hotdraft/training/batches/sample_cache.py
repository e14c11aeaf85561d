"""Samples that stay in memory: those asked for last, as many as have room."""

from collections import OrderedDict
from dataclasses import fields
from typing import Generic, TypeVar

import numpy as np

from hotdraft.pipeline.replay.sample import ReplaySample

Key = TypeVar("Key")

MAX_BYTES = 256 * 2**20
"""A request of 100 tokens with 64 of the target's likeliest at each takes 40 kB, one of 8,000 takes 3 MB."""


class SampleCache(Generic[Key]):
    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._samples: OrderedDict[Key, ReplaySample] = OrderedDict()
        """The one asked for last at the end."""
        self._bytes = 0

    def get(self, key: Key) -> ReplaySample | None:
        sample = self._samples.get(key)
        if sample is not None:
            self._samples.move_to_end(key)
        return sample

    def keep(self, key: Key, sample: ReplaySample) -> None:
        """In place of those asked for longest ago, where there is no room."""
        self._bytes += _bytes(sample) - (_bytes(self._samples.pop(key)) if key in self._samples else 0)
        self._samples[key] = sample
        while self._bytes > self._max_bytes:
            self._bytes -= _bytes(self._samples.popitem(last=False)[1])

    def clear(self) -> None:
        self._samples.clear()
        self._bytes = 0


def _bytes(sample: ReplaySample) -> int:
    values = (getattr(sample, field.name) for field in fields(sample))
    return sum(value.nbytes for value in values if isinstance(value, np.ndarray))
