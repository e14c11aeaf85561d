from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from pipeline.reservoir import take_in

EMPTY = pa.table({"request_id": pa.array([], pa.string()), "domain": pa.array([], pa.string())})


def shard(first: int, count: int, domain: str = "d") -> pa.Table:
    names = [f"{domain}{index}" for index in range(first, first + count)]
    return pa.table({"request_id": names, "domain": [domain] * count})


def test_every_domain_keeps_its_share():
    reservoir = EMPTY
    for start in range(0, 400, 40):
        arrived = pa.concat_tables([shard(start, 39, "often"), shard(start // 40, 1, "rare")])
        reservoir = take_in(reservoir, arrived, 16)
    assert Counter(reservoir["domain"].to_pylist()) == {"often": 16, "rare": 10}
    assert len(set(reservoir["request_id"].to_pylist())) == 26


def test_all_that_was_ever_offered_is_as_likely_to_stay():
    kept = Counter()
    for trial in range(300):
        reservoir = EMPTY
        for start in range(0, 60, 6):
            # another order of arrival each time: the draws themselves are fixed
            order = np.random.default_rng([trial, start]).permutation(6)
            reservoir = take_in(reservoir, shard(start, 6).take(order), 12)
        kept.update(reservoir["request_id"].to_pylist())
    early = sum(kept[f"d{index}"] for index in range(30))
    late = sum(kept[f"d{index}"] for index in range(30, 60))
    assert early + late == 300 * 12
    assert early / (early + late) == pytest.approx(0.5, abs=0.06)


def test_a_shard_that_is_offered_again_after_a_crash_counts_once():
    once = take_in(EMPTY, shard(0, 10), 16)
    assert take_in(once, shard(0, 10), 16) == once
