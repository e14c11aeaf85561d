"""A benchmark's report for people: tables for the terminal."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

Cell = Callable[[dict[str, Any]], str]
"""What a column says of a row."""


def tables(report: dict[str, Any]) -> Group:
    """The engines side by side, then hotdraft against theory, then notes; whole in a terminal of 80 columns."""
    parts = (_speed(report), _latency(report), _theory(report))
    return Group(*(part for table in parts for part in (table, Text())), *(Text(n) for n in _notes(report)))


def label(row: dict[str, Any]) -> str:
    """Engine and mode in a few words."""
    mode = row["mode"]
    if mode["kind"] == "plain":
        return f"{row['engine']} plain"
    words = f"{row['engine']} assisted" if row["engine"] == "transformers" else row["engine"]
    return f"{words} k={mode['k']}" + (" recorded" if mode["recording"] else "")


def _speed(report: dict[str, Any]) -> Table:
    place = report["environment"]
    title = (
        f"{place.get('gpu') or place['cpu']}, {place['threads']} threads, {place['dtype']}, "
        f"{place['prompts']} prompts of {place['max_tokens']} tokens, median of {place['repeats']} and min-max"
    )
    columns: dict[str, Cell] = {
        "tokens/s": lambda row: _spread(row["tokens_per_second"], 1),
        "over own\nplain": lambda row: _spread(row["speed_up"], 2),
        "over\ntransformers": lambda row: _spread(row["over_transformers"], 2),
    }
    return _engines(report, title, columns)


def _latency(report: dict[str, Any]) -> Table:
    columns: dict[str, Cell] = {
        "TTFT ms\np50/p99": lambda row: _percentiles(row["time_to_first_token"]),
        "TPOT ms\np50/p99": lambda row: _percentiles(row["time_per_output_token"]),
        "accepted": lambda row: _number(row["acceptance_rate"], ".3f"),
        "length": lambda row: _number(row["mean_acceptance_length"], ".2f"),
        "greedy": lambda row: _greedy(row["equality"]),
    }
    return _engines(report, None, columns)


def _engines(report: dict[str, Any], title: str | None, columns: Mapping[str, Cell]) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("engine", no_wrap=True)
    for heading in ("at\nonce", *columns):
        table.add_column(heading, justify="right", vertical="top")
    for row in report["rows"]:
        if row["shown"]:
            table.add_row(label(row), str(row["concurrency"]), *(cell(row) for cell in columns.values()))
    return table


def _greedy(equality: dict[str, Any]) -> str:
    margin = equality["largest_divergence_margin"]
    return f"{equality['equal']}/{equality['outputs']}" + ("" if margin is None else f" ({margin:.3f})")


def _theory(report: dict[str, Any]) -> Table:
    table = Table(
        title="hotdraft against theory", title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False
    )
    columns = {
        "at\nonce": ("concurrency", "d"),
        "k": ("k", ""),
        "drafted\na round": ("drafted_per_round", ".2f"),
        "plain\nround ms": ("plain_round_ms", ".2f"),
        "draft\nstep ms": ("draft_step_ms", ".2f"),
        "c": ("cost_ratio", ".3f"),
        "predicted": ("predicted_speed_up", ".2f"),
        "achieved": ("decode_speed_up", ".2f"),
        "efficiency": ("engine_efficiency", ".3f"),
    }
    for heading in columns:
        table.add_column(heading, justify="right")
    for row in report["hotdraft"]["speculation"]:
        table.add_row(*(_number(row.get(key), style) for key, style in columns.values()))
    return table


def _notes(report: dict[str, Any]) -> Iterator[str]:
    ours = report["hotdraft"]
    for role, small in report["environment"]["inflated"].items():
        yield f"the {role} is inflated: it costs what its size does, and answers as {small} does"
    yield f"memory reads at {ours['bandwidth_gb_per_second']:.1f} GB/s; plain decoding's share of that limit: " + (
        ", ".join(f"{share:.0%} at {rows}" for rows, share in ours["plain_bandwidth_share"].items())
    )
    if ours["memory_beyond_weights_and_kv_mb"] is not None:
        yield f"memory beyond weights and KV cache: {ours['memory_beyond_weights_and_kv_mb']:.0f} MB"
    for rows, cost in (ours["recording_overhead_percent"] or {}).items():
        yield (
            f"recorder and metrics at {rows}: {cost['median']:.1f} % of tokens/s "
            f"({cost['low']:.1f} to {cost['high']:.1f})"
        )
    if ours["swap"]:
        swap = {name: 1000 * value for name, value in ours["swap"].items() if name.endswith("_seconds")}
        yield (
            f"swap: worst gap {swap['worst_gap_swapping_seconds']:.1f} ms, median gap "
            f"{swap['median_gap_seconds']:.1f} ms, ratio {ours['swap']['worst_over_median']:.2f}; worst gap while "
            f"staging {swap['worst_gap_staging_seconds']:.1f} ms; stall {swap['worst_stall_seconds']:.1f} ms"
        )
    yield "greedy: outputs equal to the reference; in brackets the target's largest logit margin where one departs"
    for name, reason in report["left_out"].items():
        yield f"left out: {name}: {reason}"


def _spread(spread: dict[str, float] | None, digits: int) -> str:
    if spread is None:
        return "-"
    digits = digits if spread["high"] < 100 else 0
    return f"{spread['median']:.{digits}f} {spread['low']:.{digits}f}-{spread['high']:.{digits}f}"


def _percentiles(value: dict[str, float] | None) -> str:
    if value is None:
        return "-"
    digits = 1 if value["p99"] < 100 else 0
    return f"{value['p50']:.{digits}f}/{value['p99']:.{digits}f}"


def _number(value: Any, style: str) -> str:
    return "-" if value is None else f"{value:{style}}"
