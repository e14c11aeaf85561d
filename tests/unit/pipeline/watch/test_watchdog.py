import numpy as np
import pytest
from scipy import stats

from hotdraft.pipeline.config.learning import WatchdogConfig
from hotdraft.pipeline.watch.evidence import Evidence, Tally, summed
from hotdraft.pipeline.watch.watchdog import CRITICAL, Judgement, Samples, judge, looks
from tests.benchmarks.operating.bench_watchdog import DOMAINS, REPLICAS, Traffic, undone_after

CONFIG = WatchdogConfig(min_requests=10, max_requests=40, max_fall=0.03)


def served(
    kind: str, mean: float, requests: int, *, client: str = "c", seed: int = 0, noise: float = 0.05
) -> Evidence:
    rates = np.random.default_rng(seed).normal(mean, noise, requests).clip(0, 1)
    return {(client, kind): Tally(requests, float(rates.sum()), float((rates**2).sum()))}


def verdict(before: Evidence | list[Evidence], after: Evidence | list[Evidence], looks_done: int = 0) -> Judgement:
    sides = [summed(side if isinstance(side, list) else [side]) for side in (before, after)]
    return judge(Samples.of(*sides), looks_done, CONFIG)


def test_a_real_fall_is_told_with_its_numbers():
    before = served("d", 0.6, 30)
    assert verdict(before, served("d", 0.4, 9, seed=1)) == Judgement(0), "too few requests to tell"
    found = verdict(before, served("d", 0.4, 10, seed=1))
    assert found.looks == 1
    fall = found.fall
    assert fall is not None
    assert fall.before == pytest.approx(0.6, abs=0.03)
    assert fall.after == pytest.approx(0.4, abs=0.03)
    # standard errors of two means: 0.05 / sqrt(30) and 0.05 / sqrt(10)
    assert fall.error == pytest.approx(0.018, abs=0.006)
    assert fall.requests == 10
    assert f"from {fall.before:.3f} to {fall.after:.3f}" in str(fall)
    assert "over 10 requests of 1 client" in str(fall)


def test_rates_that_are_all_alike_can_fall():
    assert verdict(served("d", 0.6, 30, noise=0), served("d", 0.4, 10, noise=0)).fall is not None
    assert verdict(served("d", 0.6, 30, noise=0), served("d", 0.0, 10, noise=0)).fall is not None, "to nothing"


def test_a_fall_must_exceed_what_is_tolerated_by_so_many_standard_errors_of_a_t():
    counts, means = np.array([[30, 12], [9, 6]]), np.array([[0.6, 0.8], [0.4, 0.5]])
    sides = [
        [served(f"k{kind}", means[side, kind], counts[side, kind], seed=side, noise=0.02 + 0.06 * side)
         for kind in range(2)]
        for side in range(2)
    ]  # fmt: skip
    samples = Samples.of(*map(summed, sides))
    n, total, squares = np.stack([samples.old, samples.new], axis=1)
    spread, freedom = (squares - total**2 / n).sum(axis=1), (n - 1).sum(axis=1)
    variance = (spread + 2 * spread.sum() / freedom.sum()) / (freedom + 2)  # as if of two requests more
    weight = n[0] * n[1] / n.sum(axis=0)
    weight /= weight.sum()
    parts = variance * (weight**2 / n).sum(axis=1)
    before, after = (weight * total / n).sum(axis=1)
    freedom = parts.sum() ** 2 / (parts**2 / np.minimum(freedom + 2, freedom.sum())).sum()
    tolerated = before - after - stats.t.ppf(stats.norm.cdf(2.0), freedom) * parts.sum() ** 0.5
    assert samples.fall(2.0, tolerated + 1e-9) is None
    fall = samples.fall(2.0, tolerated - 1e-9)
    assert fall is not None
    assert (fall.before, fall.after, fall.error) == pytest.approx((before, after, parts.sum() ** 0.5))
    assert (fall.requests, fall.clients) == (15, 1)


def test_where_requests_of_a_client_rise_and_fall_together_the_error_is_that_of_clusters():
    """Of a regression on the version, with an effect for each kind; of clusters by Liang and Zeger."""
    generator = np.random.default_rng(0)
    client, kind, new = (np.repeat(row, 6) for row in np.indices((5, 2, 2)).reshape(3, -1))
    moved = np.array([0.2, -0.1, 0.1, -0.2, 0.0])[client] * new
    rates = (0.6 - 0.1 * new - 0.2 * kind + moved + generator.normal(0, 0.02, len(new))).clip(0, 1)
    rows = np.stack([new, kind == 0, kind == 1], axis=1).astype(float)
    fitted, *_ = np.linalg.lstsq(rows, rates)
    of_clients = [rows[client == c].T @ (rates - rows @ fitted)[client == c] for c in range(5)]
    inverse = np.linalg.inv(rows.T @ rows)
    covariance = inverse @ sum(np.outer(one, one) for one in of_clients) @ inverse * 5 / 4
    sides = [
        summed(
            {(f"c{c}", f"k{k}"): Tally(1, rate, rate**2)}
            for c, k, rate in zip(client[at], kind[at], rates[at], strict=True)
        )
        for at in (new == 0, new == 1)
    ]
    fall = Samples.of(*sides).fall(0.0, -1.0)
    assert fall is not None
    assert (fall.before - fall.after, fall.error) == pytest.approx((-fitted[0], covariance[0, 0] ** 0.5))


def test_requests_that_are_each_alone_tell_nothing_of_their_spread():
    before, after = ([served("d", mean, 1, client=f"c{n}", seed=n) for n in range(12)] for mean in (0.6, 0.2))
    assert verdict(before, after) == Judgement(1)


def test_the_looks_together_find_a_fall_by_chance_in_a_twentieth_of_swaps():
    standing = np.random.default_rng(0).standard_normal((100_000, len(CRITICAL))).cumsum(axis=1)
    standing /= np.sqrt(1 + np.arange(len(CRITICAL)))
    for planned, critical in enumerate(CRITICAL, start=1):
        assert (standing[:, :planned] > critical).any(axis=1).mean() == pytest.approx(0.05, abs=0.003)


@pytest.mark.parametrize(
    ("after", "noise"), [(0.7, 0.05), (0.58, 0.001), (0.55, 0.35)], ids=["better", "within the margin", "by chance"]
)
def test_what_is_no_fall(after, noise):
    found = verdict(served("d", 0.6, 30, noise=noise), served("d", after, 20, seed=1, noise=noise))
    assert found == Judgement(2)


def test_another_mix_of_kinds_is_no_fall():
    before = [served("easy", 0.8, 30), served("hard", 0.3, 10)]
    assert verdict(before, [served("hard", 0.3, 40, seed=1), served("new", 0.0, 20)]) == Judgement(5)


def test_requests_without_a_past_are_not_judged():
    assert verdict({}, served("d", 0.1, 30)) == Judgement(0)
    assert verdict(served("d", 0.6, 30), {}) == Judgement(0)
    assert verdict({}, {}) == Judgement(0)
    assert verdict({}, [served("d", 0.1, 30, client=client) for client in "ab"]) == Judgement(0)
    assert verdict(served("e", 0.6, 30), served("d", 0.1, 30)) == Judgement(0)


def test_a_look_that_was_done_is_not_done_again():
    before, after = served("d", 0.6, 30), served("d", 0.3, 16, seed=1)
    assert verdict(before, after, looks_done=1).fall is not None
    assert verdict(before, after, looks_done=2) == Judgement(2)
    assert verdict(before, served("d", 0.1, 400), looks_done=5) == Judgement(5), (
        "trusted: it is not looked at again"
    )


def test_a_client_seen_on_one_side_of_the_swap_says_nothing():
    # the reproduced attack: easy requests in the victims' domain before a swap
    victims = [served("d", 0.4, 15, client=f"v{n}", seed=n) for n in range(2)]
    easy = served("d", 0.95, 30, client="outsider")
    after = [served("d", 0.4, 25, client=f"v{n}", seed=9 + n) for n in range(2)]
    assert verdict([*victims, easy], after).fall is None
    everybody = judge(Samples.of({("c", "d"): sum(summed([*victims, easy]).values(), Tally())},
                                 {("c", "d"): sum(summed(after).values(), Tally())}), 0, CONFIG)  # fmt: skip
    assert everybody.fall is not None, "who does not tell clients apart is taken in"


def test_one_client_alone_undoes_nothing_and_hides_nothing():
    victims = [served("d", 0.5, 20, client=f"v{n}", seed=n) for n in range(3)]
    good = [served("d", 0.5, 20, client=f"v{n}", seed=9 + n) for n in range(3)]
    bad = [served("d", 0.2, 20, client=f"v{n}", seed=9 + n) for n in range(3)]
    easy, hard = (served("d", mean, 60, client="h") for mean in (0.9, 0.1))
    assert verdict([*victims, easy], [*good, hard]) == Judgement(5)
    assert verdict([*victims, hard], bad).fall is not None, "it sends nothing any more"


def test_of_many_clients_those_of_most_requests_are_each_tried_without():
    sent = {client: 1 + 37 * client % 101 for client in range(100)}
    sides = [summed(served("d", 0.5, count, client=f"c{c:02}") for c, count in sent.items()) for _ in range(2)]
    assert Samples.of(*sides).largest_clients().tolist() == sorted(sent, key=lambda c: -sent[c])[:64]


def test_a_flood_does_not_use_up_the_looks_before_others_have_been_heard():
    before = [served("d", 0.5, 20, client="v"), served("d", 0.5, 60, client="flood")]
    flood = served("d", 0.5, 300, client="flood", seed=1)
    assert verdict(before, [flood, served("d", 0.2, 4, client="v", seed=2)]) == Judgement(0)


def test_a_server_of_one_client_is_judged_by_it_though_others_once_asked():
    before = [served("d", 0.6, 60), served("d", 0.6, 3, client="curl")]
    assert verdict(before, served("d", 0.3, 10, seed=1)).fall is None, "it might be one of many"
    assert verdict(before, served("d", 0.3, 30, seed=1)).fall is not None


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (8, 60, [8, 12, 18, 27, 41, 60]),
        (12, 12, [12]),
        (12, 13, [12, 13]),
        (8, 1000, [8, 16, 32, 64, 128, 256, 511, 1000]),
    ],
)
def test_looks_grow_with_the_requests(first, last, expected):
    assert looks(first, last) == expected


def test_there_is_a_critical_value_for_every_number_of_looks():
    lengths = {len(looks(first, last)) for first in range(2, 40) for last in range(first, 3000, 7)}
    assert lengths == set(range(1, len(CRITICAL) + 1))


@pytest.mark.slow
@pytest.mark.parametrize("replicas", REPLICAS)
def test_few_good_swaps_are_undone_by_however_many_servers_and_domains(replicas):
    for domains in DOMAINS:
        for clients in (1, 8):
            assert len(undone_after(Traffic(replicas, domains, clients), 150)) <= 0.05 * 150


@pytest.mark.slow
@pytest.mark.parametrize(
    "traffic",
    [
        Traffic(domains=4, clients=2, hostile=0.8),
        Traffic(domains=4, clients=4, hostile=0.5),
        Traffic(replicas=10, domains=4, clients=8, hostile=0.3),
        Traffic(clients=4, hostile=0.5, only_before=True),
        Traffic(replicas=5, clients=12, hostile=0.8, only_before=True),
        Traffic(domains=4, mix_changes=True),
        Traffic(replicas=10, domains=16, clients=12, mix_changes=True),
        Traffic(domains=4, clients=12, clients_change=True),
        Traffic(replicas=10, clients=24, of_clients=0.12, clients_change=True),
        Traffic(clients=300, of_clients=0.15),
    ],
    ids=str,
)
def test_neither_one_client_nor_another_mix_undoes_good_swaps(traffic):
    assert len(undone_after(traffic, 200)) <= 0.05 * 200


@pytest.mark.parametrize(
    ("traffic", "share", "median"),
    [
        (Traffic(fall=0.1), 0.4, 30),
        (Traffic(fall=0.2), 0.95, 16),
        (Traffic(fall=0.3), 0.99, 12),
        (Traffic(domains=16, clients=12, fall=0.3), 0.95, 40),
        (Traffic(clients=3, fall=0.3), 0.9, 60),
        (Traffic(replicas=10, domains=16, clients=12, fall=0.2), 0.95, 80),
        (Traffic(replicas=50, domains=32, clients=40, fall=0.2), 0.95, 200),
    ],
    ids=str,
)
def test_falls_are_found(traffic, share, median):
    found = undone_after(traffic, 100)
    assert len(found) >= share * 100
    assert np.median(found) <= median
