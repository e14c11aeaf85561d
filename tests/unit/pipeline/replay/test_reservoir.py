from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.replay.reservoir import MAX_DOMAINS, kept
from tests.unit.pipeline.replay.test_replay import make_sample, request_ids

EMPTY = pa.table({"request_id": pa.array([], pa.string()), "domain": pa.array([], pa.string())})


def shard(first: int, count: int, domain: str = "d") -> pa.Table:
    names = [f"{domain}{index}" for index in range(first, first + count)]
    return pa.table({"request_id": names, "domain": [domain] * count})


def take_in(reservoir: pa.Table, retired: pa.Table, capacity: int, max_requests: int = 10_000) -> pa.Table:
    index = pa.concat_tables([reservoir, retired])
    return index.take(kept(index, len(reservoir), capacity, max_requests))


def test_every_domain_keeps_its_share():
    reservoir = EMPTY
    for start in range(0, 400, 40):
        arrived = pa.concat_tables([shard(start, 39, "often"), shard(start // 40, 1, "rare")])
        reservoir = take_in(reservoir, arrived, 16)
    assert Counter(reservoir["domain"].to_pylist()) == {"often": 16, "rare": 10}
    assert len(set(reservoir["request_id"].to_pylist())) == 26


def test_all_that_was_ever_offered_is_as_likely_to_stay():
    counts = Counter()
    for trial in range(300):
        reservoir = EMPTY
        for start in range(0, 60, 6):
            reservoir = take_in(reservoir, shard(start, 6, f"{trial}-"), 12)
        counts.update(name.split("-")[1] for name in reservoir["request_id"].to_pylist())
    early = sum(counts[str(index)] for index in range(30))
    late = sum(counts[str(index)] for index in range(30, 60))
    assert early + late == 300 * 12
    assert early / (early + late) == pytest.approx(0.5, abs=0.03)


def test_what_is_offered_again_changes_nothing():
    once = take_in(EMPTY, shard(0, 40), 16)
    assert take_in(once, shard(0, 40), 16) == once
    assert len(take_in(EMPTY, shard(0, 10), 16)) == len(take_in(shard(0, 10), shard(0, 10), 16)) == 10


def test_two_reservoirs_make_the_one_that_had_seen_all():
    parts = [take_in(EMPTY, shard(start, 50), 16) for start in (0, 50)]
    together = take_in(EMPTY, pa.concat_tables(parts), 16)
    assert together == take_in(EMPTY, shard(0, 100), 16)


def test_domains_that_clients_make_up_share_one_sample():
    reservoir = shard(0, 16, "real")
    for start in range(0, 6000, 100):
        arrived = pa.concat_tables([shard(0, 1, f"made-up-{number}-") for number in range(start, start + 100)])
        reservoir = take_in(reservoir, arrived, 16)
        assert len(reservoir) <= (MAX_DOMAINS + 1) * 16
    assert Counter(reservoir["domain"].to_pylist())["real"] == 16


def test_of_domains_that_are_as_large_those_held_already_keep_their_own_sample():
    held = pa.concat_tables([shard(0, 4, f"held{number}-") for number in range(MAX_DOMAINS)])
    arrived = pa.concat_tables([shard(0, 4, f"new{number}-") for number in range(50)])
    left = take_in(held, arrived, 4)
    assert left[: len(held)] == held
    assert len(left) == len(held) + 4


def test_it_is_written_anew_only_for_what_it_takes(tmp_path):
    buffer = ReplayBuffer(str(tmp_path), max_age_seconds=1e-9, reservoir_requests=1)
    held = {}
    for number in range(30):
        buffer.append([make_sample(f"r{number}")])
        for name in tmp_path.glob("reservoir-*"):
            held[name] = request_ids(buffer)[0]
    assert 1 < len(held) == len(set(held.values())) < 10


def test_the_whole_is_bounded_and_every_domain_gives_up_alike():
    arrived = pa.concat_tables([shard(0, 50, name) for name in "abcd"])
    reservoir = take_in(EMPTY, arrived, 16, max_requests=20)
    assert Counter(reservoir["domain"].to_pylist()) == dict.fromkeys("abcd", 5)
    assert len(take_in(EMPTY, arrived, 16, max_requests=0)) == 0
    assert np.array_equal(kept(EMPTY, 0, 16, 100), [])


def test_room_that_small_domains_leave_is_the_others():
    arrived = pa.concat_tables([shard(0, 100, "main"), *(shard(0, 1, f"rare{number}") for number in range(9))])
    for room, of_main in ((1000, 64), (73, 64), (72, 63), (40, 31), (10, 1)):
        kept_by = Counter(take_in(EMPTY, arrived, 64, room)["domain"].to_pylist())
        assert kept_by["main"] == of_main
        assert kept_by.total() == of_main + 9


def test_room_for_fewer_requests_than_domains_is_used_whatever_came_first():
    parts = [shard(0, 20, name) for name in "abcdef"]
    at_once = take_in(EMPTY, pa.concat_tables(parts), 64, max_requests=3)
    assert len(set(at_once["domain"].to_pylist())) == 3
    reservoir = EMPTY
    for part in reversed(parts):
        reservoir = take_in(reservoir, part, 64, max_requests=3)
    assert reservoir.sort_by("request_id") == at_once.sort_by("request_id")
