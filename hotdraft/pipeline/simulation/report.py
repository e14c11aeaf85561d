"""The report of a simulation and its picture: how acceptance went, by domain, with the swaps marked."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hotdraft.pipeline.simulation.playback import Outcome, Playback

WINDOW = 10
"""Requests of one domain behind each point of the curve."""


def acceptance_rate(outcomes: Sequence[Outcome]) -> float | None:
    """Accepted over drafted tokens, positions after a rejection counted as drafted; None if none were."""
    drafted = sum(outcome.drafted for outcome in outcomes)
    return sum(outcome.accepted for outcome in outcomes) / drafted if drafted else None


def mean_acceptance_length(outcomes: Sequence[Outcome]) -> float | None:
    """Tokens a round: 1 + accepted / rounds, what was guessed from text included; None without rounds."""
    rounds = sum(outcome.rounds for outcome in outcomes)
    accepted = sum(outcome.accepted + outcome.accepted_guesses for outcome in outcomes)
    return 1 + accepted / rounds if rounds else None


def drafted_per_round(outcomes: Sequence[Outcome]) -> float:
    """Drafted tokens a round: the configured k, or the mean of what an adaptive k chose; 0 without rounds."""
    rounds = sum(outcome.rounds for outcome in outcomes)
    return sum(outcome.drafted for outcome in outcomes) / rounds if rounds else 0.0


def build_report(playback: Playback) -> dict[str, Any]:
    """Everything `report.json` says. Rates are ratios of sums over the requests that did not fail."""
    outcomes = sorted(playback.outcomes, key=lambda outcome: outcome.request)
    domains = {outcome.domain: summary(outcomes, outcome.domain) for outcome in outcomes}
    last = domains[outcomes[-1].domain] if outcomes else summary([], "")
    tokens = sum(outcome.tokens for outcome in outcomes)
    return {
        "requests": len(outcomes),
        "failed_requests": sum(outcome.error is not None for outcome in outcomes),
        "swaps": playback.swaps,
        "adapters_rejected": playback.adapters_rejected,
        "k": drafted_per_round(outcomes),
        "speedup": playback.speedup,
        "tokens": tokens,
        "tokens_per_second": tokens / playback.wall_seconds,
        "acceptance_rate_first": last["acceptance_rate_first"],
        "acceptance_rate_last": last["acceptance_rate_last"],
        "by_domain": domains,
        "windows": windows(outcomes),
        "wall_seconds": playback.wall_seconds,
        "interrupted": playback.interrupted,
    }


def summary(outcomes: Sequence[Outcome], domain: str) -> dict[str, Any]:
    """One domain's figures; first and last are the first and last fifth of its requests."""
    asked = [outcome for outcome in outcomes if outcome.domain == domain]
    served = [outcome for outcome in asked if outcome.error is None]
    fifth = math.ceil(len(served) / 5)
    return {
        "requests": len(asked),
        "acceptance_rate": acceptance_rate(served),
        "acceptance_rate_first": acceptance_rate(served[:fifth]),
        "acceptance_rate_last": acceptance_rate(served[len(served) - fifth :]),
        "mean_acceptance_length": mean_acceptance_length(served),
    }


def windows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """`WINDOW` requests of one domain at a time, in the order of their last request, which names them."""
    found = []
    good = [outcome for outcome in outcomes if outcome.error is None]
    for domain in dict.fromkeys(outcome.domain for outcome in good):
        served = [outcome for outcome in good if outcome.domain == domain]
        starts = list(range(0, len(served), WINDOW))
        if len(starts) > 1 and len(served) - starts[-1] < WINDOW / 2:
            starts.pop()  # too few for a point of their own: they join the one before
        for start, end in zip(starts, [*starts[1:], len(served)], strict=True):
            window = served[start:end]
            found.append(
                {
                    "request": window[-1].request,
                    "domain": domain,
                    "acceptance_rate": acceptance_rate(window),
                    "mean_acceptance_length": mean_acceptance_length(window),
                    "draft_version": window[-1].draft_version,
                }
            )
    return sorted(found, key=lambda window: window["request"])


def swap_marks(playback: Playback) -> list[tuple[int, int]]:
    """(request, draft version) of each request that was the first to finish on another version."""
    marks = []
    served = [outcome for outcome in playback.outcomes if outcome.error is None]
    for before, after in itertools.pairwise(served):
        if after.draft_version != before.draft_version:
            marks.append((after.request, after.draft_version))
    return marks


def without_formulas(text: str) -> str:
    """`text` as a picture is to show it: matplotlib reads what is between two dollars."""
    return text.replace("$", r"\$")


def draw(playback: Playback, report: dict[str, Any], path: Path) -> None:
    """Acceptance over requests as a PNG: a curve a domain, its requests as faint dots, swaps as marks."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    domains = list(report["by_domain"])
    colours = [f"C{index}" for index in range(10)] if len(domains) <= 10 else _many_colours(len(domains))
    for domain, colour in zip(domains, colours, strict=False):
        dots = [item for item in playback.outcomes if item.domain == domain and item.drafted]
        axes.scatter(
            [item.request for item in dots],
            [item.accepted / item.drafted for item in dots],
            s=9,
            color=colour,
            alpha=0.22,
            linewidths=0,
        )
        of_domain = [item for item in report["windows"] if item["domain"] == domain]
        curve = [item for item in of_domain if item["acceptance_rate"] is not None]
        axes.plot(
            [item["request"] for item in curve],
            [item["acceptance_rate"] for item in curve],
            color=colour,
            linewidth=2,
            marker="o",
            markersize=4,
            label=without_formulas(domain.replace("_", " ")),
        )
    crowded = report["requests"] * 0.035
    last_request, level = -math.inf, 0
    for request, version in swap_marks(playback):
        level = (level + 1) % 2 if request - last_request < crowded else 0
        last_request = request
        axes.axvline(request, color="0.45", linestyle=(0, (4, 3)), linewidth=1, zorder=0)
        axes.annotate(
            f"v{version}",
            (request, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3 + 10 * level),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            color="0.3",
        )
    axes.set_xlim(0, 1.01 * report["requests"] + 1)
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel("request")
    axes.set_ylabel("acceptance rate")
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"Draft tokens accepted by the target (k = {report['k']:.2g})", loc="left", pad=26, fontsize=12)
    beside = len(domains) > 4
    figure.legend(
        loc="outside right upper" if beside else "outside lower center",
        ncols=1 if beside else 4,
        frameon=False,
        fontsize=9,
    )
    figure.savefig(path)


def _many_colours(count: int) -> list[tuple[float, ...]]:
    from matplotlib import colormaps

    return [colormaps["turbo"](index / count) for index in range(count)]
