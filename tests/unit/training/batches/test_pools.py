from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from hotdraft.pipeline.config.learning import DistillConfig
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.training.batches.pools import Pool, everything, mix_of, pools_of


@pytest.fixture
def load(make_llama, serve, tmp_path):
    """`load(domains)` gives the rows of as many requests."""

    def rows(domains, **changes):
        samples = serve(make_llama(1, scale=0.3), len(domains))
        buffer = ReplayBuffer(str(tmp_path / "replay"))
        buffer.append(
            [replace(sample, domain=domain, **changes) for sample, domain in zip(samples, domains, strict=True)]
        )
        return buffer.rows()

    return rows


def first_drawn(pool: Pool, draws: int = 4000) -> Counter[int]:
    generator = np.random.default_rng(0)
    return Counter(next(pool.draw(generator)) for _ in range(draws))


def test_the_newest_are_a_pool_and_what_came_before_another(load):
    recent, older = pools_of(load(["a"] * 10), DistillConfig(window_requests=4, older_fraction=0.25))
    assert (recent.share, older.share) == (0.75, 0.25)
    assert recent.rows.tolist() == [6, 7, 8, 9]
    assert older.rows.tolist() == [0, 1, 2, 3, 4, 5]


def test_older_domains_are_drawn_alike_however_much_there_is_of_them(load):
    _, older = pools_of(load(["often"] * 9 + ["rare"] + ["new"] * 4), DistillConfig(mix_requests=4))
    assert first_drawn(older)[9] / 4000 == pytest.approx(0.5, abs=0.03)


def test_a_domain_weighs_what_it_is_of_todays_traffic(load):
    domains = ["often"] * 9 + ["new", "often", "new", "new"]
    [today] = pools_of(load(domains), DistillConfig(mix_requests=4))
    new = sum(first_drawn(today)[row] for row in (9, 11, 12))
    assert new / 4000 == pytest.approx(0.75, abs=0.03)


def test_a_domain_that_comes_no_more_is_older_however_recent(load):
    domains = ["gone"] * 3 + ["new"] * 4
    today, older = pools_of(load(domains), DistillConfig(mix_requests=4, window_requests=100))
    assert today.rows.tolist() == [3, 4, 5, 6]
    assert older.rows.tolist() == [0, 1, 2]


def test_the_mix_is_that_of_the_newest():
    settings = DistillConfig(mix_requests=4)
    assert mix_of(["b", "c", "a", "a", "a", "d"], settings) == {"a": 0.75, "d": 0.25}


def test_what_was_missed_most_is_drawn_first(load):
    load(["a"] * 2, accepted=np.ones(24, bool), drafted_ids=np.zeros(24, np.int32))
    load(["a"], accepted=np.arange(24) == 23, drafted_ids=np.zeros(24, np.int32))
    rows = load(["a"], accepted=np.ones(24, bool), drafted_ids=np.zeros(24, np.int32))
    pools = pools_of(rows, DistillConfig(rejected_fraction=0.4, older_fraction=0.5))
    assert [pool.share for pool in pools] == pytest.approx([0.1, 0.4])
    counts = first_drawn(pools[1])
    assert counts[2] / 4000 == pytest.approx(24 / 27, abs=0.03)


def test_a_draw_is_an_order_of_all_rows():
    [pool] = everything(5)
    generator = np.random.default_rng(0)
    orders = {tuple(pool.draw(generator)) for _ in range(200)}
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in orders)
    assert len(orders) > 50


def test_of_many_rows_the_likely_come_first_and_all_come_once():
    weights = np.where(np.arange(300) < 100, 2.0, 0.5)
    orders = [list(Pool(1.0, 1000 + np.arange(300), weights).draw(np.random.default_rng(n))) for n in range(100)]
    assert all(sorted(order) == list(range(1000, 1300)) for order in orders)
    likely = np.mean([np.array(order) < 1100 for order in orders], axis=0)
    assert likely[:10].mean() == pytest.approx(2 / 3, abs=0.05)
    assert likely[-100:].mean() < 0.1
    assert len({order[0] for order in orders}) > 50
