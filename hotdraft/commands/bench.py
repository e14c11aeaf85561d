"""`hotdraft bench`: hotdraft beside other engines, in one run on one machine."""

from pathlib import Path
from typing import Annotated

import typer

from hotdraft.commands.options import ConfigOption, check_writable, waiting


def bench(
    config: ConfigOption,
    against: Annotated[
        str,
        typer.Option(
            help="Peers, by comma: transformers, transformers-assisted, openvino, openvino-int8, llamacpp."
        ),
    ] = "",
    concurrency: Annotated[str, typer.Option(help="Requests at once, by comma.")] = "1",
    traffic: Annotated[Path | None, typer.Option(help="JSONL of prompts; built-in ones without it.")] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts of each run.")] = 16,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens that each prompt is answered with.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Interleaved repeats behind each median.")] = 3,
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, help="CPU threads of each engine; by default all cores.")
    ] = None,
    fixed_k: Annotated[bool, typer.Option("--fixed-k", help="Also hotdraft with each fixed k.")] = False,
    overhead: Annotated[bool, typer.Option("--overhead", help="Also the cost of recorder and metrics.")] = False,
    swap: Annotated[bool, typer.Option("--swap", help="Also what a stream notices of a swap.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the whole report here.")] = None,
    chart: Annotated[Path | None, typer.Option(help="Write a chart here, PNG or as its name says.")] = None,
) -> None:
    """Measure speed, latency, acceptance and equality side by side, and hotdraft against what theory allows.

    Examples:
    $ hotdraft bench --config smollm2
    $ hotdraft bench -c smollm2 --against transformers,llamacpp --swap
    $ hotdraft bench -c smollm2 --concurrency 1,4 --json bench.json
    """
    import json

    from rich.console import Console

    from hotdraft.pipeline.config.settings import load_config

    _check_files(json_file, chart)
    with waiting("importing torch"):
        from hotdraft.serving.benchmark.benchmark import measure
        from hotdraft.serving.benchmark.engines.client import WorkerError
        from hotdraft.serving.benchmark.figures.chart import draw
        from hotdraft.serving.benchmark.figures.table import tables
        from hotdraft.serving.benchmark.plan import make_plan

    settings = load_config(config)
    plan = make_plan(
        settings,
        config,
        against=_words(against),
        concurrency=_numbers(concurrency),
        traffic=traffic,
        prompts=prompts,
        max_tokens=max_tokens,
        repeats=repeats,
        threads=threads,
        fixed_k=fixed_k,
        overhead=overhead,
        swap=swap,
    )
    console = Console(markup=False)
    with console.status("") as status:
        try:
            report = measure(settings, plan, status.update if console.is_terminal else console.print)
        except WorkerError as error:
            console.print(f"error: {error}", style="red", markup=False, highlight=False)
            raise typer.Exit(1) from error
    console.print(tables(report))
    if json_file is not None:
        json_file.write_text(json.dumps(report, indent=2) + "\n")
    if chart is not None:
        draw(report, chart)


def _check_files(json_file: Path | None, chart: Path | None) -> None:
    """Better told now than at the end of a run."""
    if chart is not None:
        from matplotlib.backend_bases import FigureCanvasBase

        kinds = FigureCanvasBase.get_supported_filetypes()
        if chart.suffix.lower().removeprefix(".") not in kinds:
            raise typer.BadParameter(f"{chart} is none of the kinds that can be drawn: {', '.join(sorted(kinds))}")
    check_writable(*filter(None, (json_file, chart)))


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(text: str) -> list[int]:
    try:
        return sorted({int(word) for word in _words(text)})
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not whole numbers by comma") from None
