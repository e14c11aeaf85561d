"""Figures from runs whose times are known."""

import dataclasses

import pytest

from hotdraft.serving.benchmark.engines.engine import PLAIN, Mode, RunResult, Speculation
from hotdraft.serving.benchmark.figures.report import plain_shares
from hotdraft.serving.benchmark.figures.summary import Measurement, Percentiles, Row, Spread, best_rows, summarise
from hotdraft.serving.benchmark.session import Measured

K2 = Mode("speculative", 2)
AUTO = Mode("speculative", "auto")


def measurement(
    engine: str, mode: Mode, repeat: int, seconds: float, told: Speculation | None = None
) -> Measurement:
    """Ten tokens in `seconds`: the first after a tenth of it, the others after all of it."""
    times = [seconds / 10, *[seconds] * 9]
    return Measurement(engine, mode, 1, repeat, RunResult(seconds, [list(range(10))], [times], told))


def only(rows: list[Row], engine: str, mode: Mode) -> Row:
    [row] = [row for row in rows if (row.engine, row.mode) == (engine, mode)]
    return row


def test_ratios_are_paired_within_a_repeat() -> None:
    rows = summarise(
        [
            measurement("transformers", PLAIN, 0, 4.0),
            measurement("hotdraft", PLAIN, 0, 2.0),
            measurement("hotdraft", K2, 0, 1.0, Speculation(rounds=4, drafted=8, accepted=6)),
            measurement("transformers", PLAIN, 1, 8.0),  # the machine was busy
            measurement("hotdraft", PLAIN, 1, 5.0),
            measurement("hotdraft", K2, 1, 2.0, Speculation(rounds=6, drafted=12, accepted=4)),
        ]
    )
    ours = only(rows, "hotdraft", K2)
    assert ours.tokens_per_second == Spread(7.5, 5.0, 10.0)
    assert ours.speed_up == Spread(2.25, 2.0, 2.5)
    assert ours.over_transformers == Spread(4.0, 4.0, 4.0)
    assert ours.acceptance_rate == 0.5
    assert ours.mean_acceptance_length == 2.0
    assert ours.drafted_per_round == 2.0
    plain = only(rows, "hotdraft", PLAIN)
    assert plain.speed_up is None
    assert plain.over_transformers == Spread(1.8, 1.6, 2.0)
    assert plain.acceptance_rate is None


def test_times_of_tokens() -> None:
    [row] = summarise([measurement("hotdraft", PLAIN, 0, 2.0)])
    assert row.time_to_first_token == Percentiles(p50=pytest.approx(200), p99=pytest.approx(200))
    assert row.time_per_output_token == Percentiles(p50=pytest.approx(200), p99=pytest.approx(200))  # 1.8 s / 9
    assert Percentiles.of([0.1, 0.2, 0.3]) == Percentiles(p50=pytest.approx(200), p99=pytest.approx(298))


def test_a_text_that_came_whole_says_nothing_of_the_bandwidth() -> None:
    whole = Measurement("hotdraft", PLAIN, 1, 0, RunResult(1.0, [[1, 2]], [[1.0, 1.0]], None))
    steps = Measurement("hotdraft", PLAIN, 2, 0, RunResult(1.0, [[1, 2]], [[0.5, 1.0]], None))
    measured = Measured([whole, steps], bandwidths={1: [400.0], 2: [400.0]})
    assert plain_shares(measured, step_bytes=100) == {"2": [0.5]}


def test_a_repeat_is_held_against_what_memory_read_beside_it() -> None:
    quiet = Measurement("hotdraft", PLAIN, 1, 0, RunResult(1.0, [[1, 2]], [[0.5, 1.0]], None))
    crowded = Measurement("hotdraft", PLAIN, 1, 1, RunResult(1.0, [[1, 2]], [[0.0, 1.0]], None))
    measured = Measured([quiet, crowded], bandwidths={1: [250.0, 125.0]})
    assert plain_shares(measured, step_bytes=100) == {"1": [0.8, 0.8]}


def test_decoding_is_compared_without_the_tokens_that_came_first() -> None:
    slow = Measurement("hotdraft", PLAIN, 1, 0, RunResult(1.0, [[1, 2, 3, 4]], [[0.4, 0.6, 0.8, 1.0]]))
    told = Speculation(rounds=2, drafted=2, accepted=2)
    fast = Measurement("hotdraft", K2, 1, 0, RunResult(1.0, [[1, 2, 3, 4]], [[0.4, 0.4, 0.6, 0.6]], told))
    assert slow.decode_seconds_per_token == pytest.approx(0.2)
    assert fast.decode_seconds_per_token == pytest.approx(0.1)
    row = only(summarise([slow, fast]), "hotdraft", K2)
    assert row.speed_up == Spread(1.0, 1.0, 1.0)
    assert row.decode_speed_up is not None
    assert row.decode_speed_up.median == pytest.approx(2.0)


def test_an_engine_that_tells_no_times() -> None:
    silent = dataclasses.replace(measurement("other", PLAIN, 0, 2.0).result, token_times=[])
    [row] = summarise([Measurement("other", PLAIN, 1, 0, silent)])
    assert row.time_to_first_token is row.time_per_output_token is None
    assert row.tokens_per_second.median == 5.0


def test_the_best_k_is_the_one_that_gained_most_however_fast_the_machine_was_meanwhile() -> None:
    told = Speculation(1, 1, 1)
    k1, k3 = Mode("speculative", 1), Mode("speculative", 3)
    seconds = {PLAIN: (4.0, 2.0, 2.0), k1: (3.0, 1.6, 1.6), k3: (1.7, 1.7, 1.4)}
    rows = summarise(
        [
            measurement("llamacpp", mode, repeat, lasted, told if mode != PLAIN else None)
            for mode, times in seconds.items()
            for repeat, lasted in enumerate(times)
        ]
    )
    assert [row.mode for row in best_rows(rows)] == [PLAIN, k3]


def test_the_table_shows_the_best_fixed_k_or_the_engines_own_choice() -> None:
    told = Speculation(1, 1, 1)
    rows = summarise(
        [
            measurement("transformers", PLAIN, 0, 2.0),
            measurement("transformers", Mode("speculative", 1), 0, 3.0, told),
            measurement("transformers", K2, 0, 2.5, told),
            measurement("hotdraft", PLAIN, 0, 1.0),
            measurement("hotdraft", AUTO, 0, 0.8, told),
            measurement("hotdraft", K2, 0, 0.7, told),
        ]
    )
    shown = [(row.engine, row.mode) for row in best_rows(rows)]
    assert shown == [("transformers", PLAIN), ("transformers", K2), ("hotdraft", PLAIN), ("hotdraft", AUTO)]
