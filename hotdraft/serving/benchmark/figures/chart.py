"""A benchmark's report as a picture: tokens a second of every engine, by requests at once."""

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hotdraft.serving.benchmark.figures.table import label

COLOURS = {"hotdraft": "C0", "transformers": "C7", "openvino": "C2", "llamacpp": "C1"}


def draw(report: dict[str, Any], path: Path) -> None:
    """Write a PNG: a panel for each concurrency, a bar for each engine and mode, whiskers from min to max."""
    place = report["environment"]
    panels = place["concurrency"]
    rows = [row for row in report["rows"] if row["shown"]]
    most = max(sum(row["concurrency"] == concurrency for row in rows) for concurrency in panels)
    figure = Figure(figsize=(3.2 + 3.6 * len(panels), 1.9 + 0.36 * most), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, concurrency in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        shown = [row for row in rows if row["concurrency"] == concurrency]
        rates = [row["tokens_per_second"] for row in shown]
        medians = [rate["median"] for rate in rates]
        whiskers = [
            [rate["median"] - rate["low"] for rate in rates],
            [rate["high"] - rate["median"] for rate in rates],
        ]
        bars = axes.barh(
            [label(row) for row in shown],
            medians,
            xerr=whiskers,
            color=[COLOURS.get(row["engine"], "C4") for row in shown],
            alpha=0.85,
            error_kw={"ecolor": "0.25", "capsize": 2, "elinewidth": 1},
        )
        for bar, row in zip(bars, shown, strict=True):
            if row["mode"]["kind"] == "plain":
                bar.set_alpha(0.45)
        axes.bar_label(bars, labels=[f"{median:.0f}" for median in medians], padding=7, fontsize=8)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.15 * max(rate["high"] for rate in rates))
        axes.set_title(f"{concurrency} at once", loc="left", fontsize=10)
        axes.set_xlabel("tokens/s")
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        f"Greedy decoding, {place['dtype']}, {place['threads']} threads of {place['cpu']}: median, min to max",
        x=0.01,
        ha="left",
        fontsize=11,
    )
    figure.savefig(path)
