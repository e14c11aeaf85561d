"""From runs to figures: medians with their spread, ratios paired within a repeat, percentiles."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from hotdraft.serving.benchmark.engines.engine import PLAIN, Mode, RunResult


@dataclass(frozen=True)
class Measurement:
    """One engine's run of all prompts in one repeat."""

    engine: str
    mode: Mode
    concurrency: int
    repeat: int
    result: RunResult

    @property
    def tokens_per_second(self) -> float:
        """Output tokens over the run's wall clock, the prompts' processing included."""
        return sum(map(len, self.result.outputs)) / self.result.seconds

    @property
    def decode_seconds_per_token(self) -> float | None:
        """Mean time a token takes a request after those that came first; None if times are not told."""
        seconds = tokens = 0.0
        for times in self.result.token_times:
            seconds += times[-1] - times[0]
            tokens += sum(time > times[0] for time in times)
        return seconds / tokens if tokens else None


@dataclass(frozen=True)
class Spread:
    """Over the repeats."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        return cls(float(np.median(values)), min(values), max(values))


@dataclass(frozen=True)
class Percentiles:
    """Over all requests of all repeats, in milliseconds."""

    p50: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self:
        p50, p99 = np.percentile(seconds, [50, 99]) * 1000
        return cls(float(p50), float(p99))


@dataclass(frozen=True)
class Row:
    """One engine in one mode at one concurrency."""

    engine: str
    mode: Mode
    concurrency: int
    tokens_per_second: Spread
    speed_up: Spread | None
    """Over the same engine's plain decoding; None for that itself."""
    over_transformers: Spread | None
    """Over transformers' plain decoding at this concurrency; None if it did not run."""
    time_to_first_token: Percentiles | None
    time_per_output_token: Percentiles | None
    """Of a request: (last token - first token) / (tokens - 1)."""
    acceptance_rate: float | None
    """Accepted / drafted tokens."""
    mean_acceptance_length: float | None
    """1 + accepted / rounds."""
    drafted_per_round: float | None
    """By the draft model."""
    decode_speed_up: Spread | None
    """As `speed_up`, without the time to the first token."""


def summarise(measurements: Sequence[Measurement]) -> list[Row]:
    """A row for each engine, mode and concurrency, in the order of their first appearance."""
    keys = dict.fromkeys((item.engine, item.mode, item.concurrency) for item in measurements)
    return [_row(engine, mode, concurrency, measurements) for engine, mode, concurrency in keys]


def select(
    measurements: Iterable[Measurement], engine: str, mode: Mode, concurrency: int
) -> dict[int, Measurement]:
    """The measurements of one row by repeat."""
    return {
        item.repeat: item
        for item in measurements
        if (item.engine, item.mode, item.concurrency) == (engine, mode, concurrency)
    }


def paired(ours: dict[int, Measurement], theirs: dict[int, Measurement]) -> Spread | None:
    """Ratios of tokens/s within each repeat that both ran."""
    both = sorted(ours.keys() & theirs.keys())
    return Spread.of([ours[r].tokens_per_second / theirs[r].tokens_per_second for r in both]) if both else None


def _row(engine: str, mode: Mode, concurrency: int, measurements: Sequence[Measurement]) -> Row:
    own = select(measurements, engine, mode, concurrency)
    plain = select(measurements, engine, PLAIN, concurrency)
    results = [item.result for item in own.values()]
    times = [times for result in results for times in result.token_times]
    told = [result.speculation for result in results if result.speculation is not None]
    rounds, drafted, accepted = (sum(getattr(item, n) for item in told) for n in ("rounds", "drafted", "accepted"))
    per_token = [(t[-1] - t[0]) / (len(t) - 1) for t in times if len(t) > 1]
    return Row(
        engine=engine,
        mode=mode,
        concurrency=concurrency,
        tokens_per_second=Spread.of([item.tokens_per_second for item in own.values()]),
        speed_up=paired(own, plain) if mode != PLAIN else None,
        over_transformers=paired(own, select(measurements, "transformers", PLAIN, concurrency)),
        time_to_first_token=Percentiles.of([t[0] for t in times]) if times else None,
        time_per_output_token=Percentiles.of(per_token) if per_token else None,
        acceptance_rate=accepted / drafted if drafted else None,
        mean_acceptance_length=1 + accepted / rounds if rounds else None,
        drafted_per_round=(drafted - sum(item.guessed for item in told)) / rounds if rounds else None,
        decode_speed_up=_decode_speed_up(own, plain) if mode != PLAIN else None,
    )


def _decode_speed_up(ours: dict[int, Measurement], plain: dict[int, Measurement]) -> Spread | None:
    ratios = []
    for repeat in sorted(ours.keys() & plain.keys()):
        seconds, baseline = ours[repeat].decode_seconds_per_token, plain[repeat].decode_seconds_per_token
        if seconds and baseline:
            ratios.append(baseline / seconds)
    return Spread.of(ratios) if ratios else None


def _gain(row: Row) -> float:
    """Over plain decoding of the same repeats: from one to the next a machine changes more than k does."""
    return 0.0 if row.speed_up is None else row.speed_up.median


def best_rows(rows: Sequence[Row]) -> list[Row]:
    """Of each engine and concurrency: plain, the engine's own choice of k, and else the k that gained most."""
    kept = []
    for row in rows:
        rivals = [
            other
            for other in rows
            if (other.engine, other.concurrency, other.mode.recording)
            == (row.engine, row.concurrency, row.mode.recording)
            and other.mode.kind == "speculative"
        ]
        chosen = [other for other in rivals if other.mode.k == "auto"] or [max(rivals, key=_gain, default=row)]
        if row.mode.kind == "plain" or row in chosen:
            kept.append(row)
    return kept
