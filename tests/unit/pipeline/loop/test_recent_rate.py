"""The rate of the newest requests is that of a sum over them, which is made for none of them twice."""

from collections.abc import Iterator

import numpy as np
import pytest

from hotdraft.pipeline.loop.recent_rate import Counted, RecentRate


def counted(requests: int) -> Iterator[Counted]:
    rng = np.random.default_rng(0)
    for examined in rng.integers(0, 30, requests).tolist():
        yield int(rng.integers(0, examined + 1)), examined


@pytest.mark.parametrize("most", [1, 7, 100])
def test_it_is_what_a_sum_over_the_newest_gives(most: int) -> None:
    kept, all_of_them = RecentRate(most), [*counted(50)]
    assert kept.rate == 0
    for number, request in enumerate(all_of_them, start=1):
        oldest = kept.push(request)
        assert oldest == (all_of_them[number - most - 1] if number > most else None)
        newest = all_of_them[max(0, number - most) : number]
        assert len(kept) == len(newest)
        assert kept.rate == sum(accepted for accepted, _ in newest) / max(1, sum(all_ for _, all_ in newest))
    kept.clear()
    assert (len(kept), kept.rate) == (0, 0)
    kept.push((3, 4))
    assert kept.rate == 0.75


def test_a_request_is_looked_at_as_it_comes_and_as_it_goes() -> None:
    looks = 0

    class Watched(int):
        def __sub__(self, other: int) -> int:
            nonlocal looks
            looks += 1
            return int(self) - int(other)

        def __rsub__(self, other: int) -> int:
            return self.__sub__(other)

        def __radd__(self, other: int) -> int:
            nonlocal looks
            looks += 1
            return int(self) + int(other)

    kept = RecentRate(1000)
    for accepted, examined in counted(3000):
        kept.push((Watched(accepted), Watched(examined)))
        assert 0 <= kept.rate <= 1
    assert looks <= 2 * 2 * 3000
