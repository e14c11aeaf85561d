"""Memory for weights."""

import mmap
from errno import EINVAL

import pytest

from hotdraft.serving.native.memory import WeightMemory


class WithoutHugePages(mmap.mmap):
    def madvise(self, *advice: int) -> None:
        raise OSError(EINVAL, "Invalid argument")


def test_a_kernel_that_knows_no_huge_pages_gives_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "mmap", WithoutHugePages)
    taken = WeightMemory().take(100)
    assert (len(taken), int(taken.sum()), taken.data_ptr() % 64) == (100, 0, 0)
