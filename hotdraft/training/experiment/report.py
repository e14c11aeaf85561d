"""What an experiment found: a table of its policies and a chart of acceptance over requests."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hotdraft.pipeline.simulation.report import without_formulas
from hotdraft.training.experiment.figures import (
    Result,
    Results,
    acceptance_rate,
    area_ratios,
    figures,
    is_shift,
    starts,
)

WINDOW = 20
"""Requests behind each point of the chart."""

Column = tuple[str, str, str, bool]
"""Key of `figures` or `speed`, heading, format, and whether the spread over the seeds is told."""

TABLES: dict[str, tuple[Column, ...]] = {
    "Acceptance rate by policy": (
        ("first", "first\nfifth", "{:.3f}", True),
        ("last", "last\nfifth", "{:.3f}", True),
        ("area", "whole\nstream", "{:.3f}", True),
        ("gain", "gain,\nunseen", "{:+.3f}", True),
        ("lost", "lost on\nearlier", "{:+.3f}", True),
    ),
    "Predicted speed, and what it took": (
        ("speed", "tokens/s\nat last", "{:.1f}", False),
        ("promoted", "\npromoted", "{:.0f}", False),
        ("jobs", "\njobs", "{:.0f}", False),
        ("steps", "\nsteps", "{:.0f}", False),
        ("seconds", "training\ns", "{:.0f}", False),
    ),
}
"""Columns by title: one table would be wider than 80 characters."""
FOLLOWING: tuple[Column, ...] = (
    ("half", "half\nserved", "{:.0f}", False),
    ("recovered", "90 %\nserved", "{:.0f}", False),
    ("share", "share\nat last", "{:.2f}", True),
    ("area_share", "share of\nthe area", "{:.2f}", True),
    ("forgotten", "most\nforgot", "{:.3f}", False),
    ("worse", "worse\nserved", "{:.0f}", False),
    ("point_seconds", "s a\npoint", "{:.0f}", False),
)
"""Where ceilings are known."""


def show(
    console: Console,
    results: Results,
    round_seconds: Mapping[str, float],
    baseline: str | None = None,
    ceilings: Results | None = None,
) -> None:
    """Print, in 80 columns, means over the seeds, with the standard deviation below where there are several.

    `round_seconds` of each policy make predicted tokens/s of its tokens a round. With a `baseline` among the
    policies, also the ratio of areas under the acceptance curve, seed by seed. With `ceilings`, by name and seed,
    what could be gained, and how soon and how much of it was.
    """
    reached = list(zip(*(ceilings or {}).values(), strict=True))
    found = {
        name: [figures(run, reached[seed] if reached else ()) for seed, run in enumerate(runs)]
        for name, runs in results.items()
    }
    for name, runs in found.items():
        for run in runs:
            run["speed"] = run["tokens_per_round"] / round_seconds[name]
    tables = dict(TABLES)
    if ceilings:
        best = [run["ceiling"] for run in next(iter(found.values()))]
        told = _cell(best, "{:+.3f}", False)
        tables[f"Of a gain of {told} that could be reached: requests until it is served"] = FOLLOWING
    for title, columns in tables.items():
        console.print(title, style="italic", highlight=False)
        table = Table("policy", box=None, padding=(0, 1, 0, 0))
        for _, heading, _, _ in columns:
            table.add_column(heading, justify="right", no_wrap=True)
        for name, runs in found.items():
            cells = (_cell([run[key] for run in runs], form, spread) for key, _, form, spread in columns)
            table.add_row(name, *cells)
        console.print(table, "")
    for name, ratios in area_ratios(results, baseline).items():
        told = f"{name}: {_cell(ratios, '{:.2f}', False)} times the area under the acceptance curve of {baseline}"
        console.print(f"{told} ({', '.join(f'{ratio:.2f}' for ratio in ratios)})", highlight=False)


def _cell(values: Sequence[float], form: str, spread: bool) -> str:
    told = form.format(statistics.fmean(values))
    return f"{told}\n± {statistics.stdev(values):.3f}" if spread and len(values) > 1 else told


def draw(results: Results, path: Path) -> None:
    """Acceptance over requests as a PNG: a curve a policy, the mean of its seeds, with their range.

    After a shift, beside it, what each policy ends with on unseen requests of either domain.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    first = next(iter(results.values()))[0]["served"]
    figure = Figure(figsize=(10, 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    if shift := is_shift(first):
        axes, beside = figure.subplots(1, 2, sharey=True, width_ratios=(2.6, 1))
        _draw_kept(beside, results)
    else:
        axes = figure.add_subplot()
    for colour, (name, runs) in enumerate(results.items()):
        curves = [_curve(run["served"]) for run in runs]
        length = min(map(len, curves))
        points = [[curve[i] for curve in curves] for i in range(length)]
        requests = [WINDOW * (i + 1) for i in range(length)]
        axes.plot(requests, [statistics.fmean(p) for p in points], color=f"C{colour}", linewidth=2, label=name)
        axes.fill_between(requests, list(map(min, points)), list(map(max, points)), color=f"C{colour}", alpha=0.15)
    if shift:
        for start in starts(first)[1:]:
            axes.axvline(start, color="0.6", linewidth=1, linestyle=":")
            axes.annotate(
                without_formulas(first[start]["domain"]),
                (start, 0.01),
                xycoords=("data", "axes fraction"),
                color="0.4",
            )
    axes.set_title("served", fontsize="medium")
    axes.set_xlabel("request")
    axes.set_ylabel("acceptance rate")
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path)


def _draw_kept(axes: Any, results: Results) -> None:
    width = 0.8 / len(results)
    domains = list(next(iter(results.values()))[0]["probes_after"])
    for colour, runs in enumerate(results.values()):
        for place, domain in enumerate(domains):
            ends = [run["probes_after"][domain] for run in runs]
            left = place + (colour - (len(results) - 1) / 2) * width
            mean = statistics.fmean(ends)
            spread = [[mean - min(ends)], [max(ends) - mean]]
            axes.bar(left, mean, width * 0.9, color=f"C{colour}", yerr=spread, ecolor="0.4")
    axes.set_xticks(range(len(domains)), [*map(without_formulas, domains)])
    axes.set_title("unseen requests, at the end", fontsize="medium")
    axes.spines[["top", "right"]].set_visible(False)


def _curve(served: Sequence[Result]) -> list[float]:
    return [acceptance_rate(served[i : i + WINDOW]) for i in range(0, len(served) - WINDOW + 1, WINDOW)]
