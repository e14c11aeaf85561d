"""Rows that several files hold, as a crash or another server may leave them, count once and are never lost."""

from hotdraft.pipeline.replay.counted import counted, newest_reservoir
from hotdraft.pipeline.replay.shard import Shard


def shard(name: str, **origins: int) -> Shard:
    return Shard(name, 1, sum(origins.values()), (*origins,), (*origins.values(),), None, None)


def test_of_merges_that_overlap_each_gives_what_no_larger_one_has() -> None:
    large, middle, small = shard("l", a=2, b=3, c=1, d=4), shard("m", x=5, b=3, y=2, z=1), shard("s", y=2, c=1, w=7)
    alone, merged = shard("own", own=6), shard("z", z=1)
    assert counted([merged, small, alone, middle, large]) == {
        "l": [(0, 10)],
        "m": [(0, 5), (8, 11)],
        "s": [(3, 10)],
        "own": [(0, 6)],
        "z": [],
    }


def test_what_the_reservoir_was_filled_from_counts_no_more() -> None:
    found = counted([shard("a", a=3), shard("b", b=3), shard("reservoir-1", r=4, a=0)])
    assert found == {"reservoir-1": [(0, 4)], "a": [], "b": [(0, 3)]}


def test_of_reservoirs_the_newest_counts_and_one_of_an_older_version_last() -> None:
    named = ["reservoir-00002.parquet", "shard-3.parquet", "reservoir.parquet", "reservoir-00001.parquet"]
    assert newest_reservoir(named) == ["reservoir-00002.parquet"]
    assert newest_reservoir(["reservoir.parquet", "shard-3.parquet"]) == ["reservoir.parquet"]
    assert newest_reservoir(["shard-3.parquet"]) == []
