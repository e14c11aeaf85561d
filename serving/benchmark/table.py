"""A benchmark's report for people: tables for the terminal."""

from collections.abc import Iterator
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text


def tables(report: dict[str, Any]) -> Group:
    """The engines side by side, then hotdraft against theory, then notes."""
    return Group(_engines(report), Text(), _theory(report), *(Text(note) for note in _notes(report)))


def label(row: dict[str, Any]) -> str:
    """Engine and mode in a few words."""
    mode = row["mode"]
    if mode["kind"] == "plain":
        return f"{row['engine']} plain"
    words = "assisted" if row["engine"] == "transformers" else "speculative"
    return f"{row['engine']} {words} k={mode['k']}" + (", recording" if mode["recording"] else "")


def _engines(report: dict[str, Any]) -> Table:
    place = report["environment"]
    table = Table(
        title=f"{place['cpu']}, {place['threads']} threads, {place['dtype']}, {place['prompts']} prompts of "
        f"{place['max_tokens']} tokens, median of {place['repeats']} (min-max)",
        title_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
    )
    table.add_column("engine")
    headings = (
        *("at once", "tokens/s", "over own plain", "over transformers"),
        *("TTFT ms p50/p99", "TPOT ms p50/p99", "accepted", "length", "greedy"),
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in report["rows"]:
        if row["shown"]:
            table.add_row(*_cells(row))
    return table


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    equality = row["equality"]
    greedy = f"{equality['equal']}/{equality['outputs']}"
    if equality["largest_divergence_margin"] is not None:
        greedy += f" ({equality['largest_divergence_margin']:.3f})"
    return (
        label(row),
        str(row["concurrency"]),
        _spread(row["tokens_per_second"], ".1f"),
        _spread(row["speed_up"], ".2f"),
        _spread(row["over_transformers"], ".2f"),
        _percentiles(row["time_to_first_token"]),
        _percentiles(row["time_per_output_token"]),
        _number(row["acceptance_rate"], ".3f"),
        _number(row["mean_acceptance_length"], ".2f"),
        greedy,
    )


def _theory(report: dict[str, Any]) -> Table:
    table = Table(title="hotdraft against theory", title_justify="left", box=None, padding=(0, 1, 0, 0))
    columns = {
        "at once": ("concurrency", "d"),
        "k": ("k", ""),
        "drafted a round": ("drafted_per_round", ".2f"),
        "plain round ms": ("plain_round_ms", ".2f"),
        "draft step ms": ("draft_step_ms", ".2f"),
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


def _spread(spread: dict[str, float] | None, style: str) -> str:
    if spread is None:
        return "-"
    return f"{spread['median']:{style}} ({spread['low']:{style}}-{spread['high']:{style}})"


def _percentiles(value: dict[str, float] | None) -> str:
    return "-" if value is None else f"{value['p50']:.1f}/{value['p99']:.1f}"


def _number(value: Any, style: str) -> str:
    return "-" if value is None else f"{value:{style}}"
