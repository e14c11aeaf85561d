"""`hotdraft experiment`: policies of the loop side by side on the same stream of requests, without a server."""

from pathlib import Path
from typing import Annotated, Any

import typer

from hotdraft.commands.options import ConfigOption


def experiment(
    config: ConfigOption,
    out: Annotated[Path, typer.Option(help="Folder for results, table and chart; a run that was stopped goes on.")],
    traffic: Annotated[
        list[Path] | None,
        typer.Option(help="JSONL file of prompts; several are played in turn. Without: the built-in shift."),
    ] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="First prompts of each file only.")] = None,
    policy: Annotated[list[str] | None, typer.Option(help="Only this one of the policies. Repeatable.")] = None,
) -> None:
    """Play one stream under each policy and seed: acceptance, forgetting, training time, predicted speed.

    Everything but serving is real: the replay buffer, the trigger, jobs, the
    gate, the registry. The configuration needs an experiment section.

    Examples:
    $ hotdraft experiment --config configs/experiment-shift.yaml --out runs/shift
    $ hotdraft experiment -c configs/experiment-shift.yaml --out runs/mine \\
        --traffic a.jsonl --traffic b.jsonl --policy static --policy ours
    """
    from functools import partial

    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from hotdraft.pipeline.config.settings import load_config, merged
    from hotdraft.training.experiment.report import draw, show
    from hotdraft.training.experiment.streams import read_streams

    settings = load_config(config)
    chosen = settings.experiment.policies
    unknown = sorted(set(policy or ()) - chosen.keys())
    if not chosen or unknown:
        raise typer.BadParameter(
            f"experiment.policies has {sorted(chosen)}" + (f", not {unknown}" if unknown else "")
        )
    names = policy or list(chosen)
    streams = read_streams(settings.experiment, traffic, requests)

    from hotdraft.answering.experiment_answers import answers_of
    from hotdraft.answering.round_cost import round_seconds
    from hotdraft.training.experiment.ceiling import UNJUDGED, ceiling
    from hotdraft.training.experiment.kept import kept_or_played
    from hotdraft.training.experiment.study import study
    from hotdraft.training.fit.progress_bar import quiet_trainer

    quiet_trainer()
    answers = answers_of(settings, out / "answers", streams)
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    ceilings: dict[str, list[dict[str, Any]]] = {name: [] for name in settings.experiment.ceilings}
    console = Console()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        for seed, stream in streams.items():
            samples, probes = answers.of(stream.prompts), answers.of(stream.probes)
            asked, of_seed = [*samples, *probes], {"distill": {"seed": seed}}
            for name, overrides in settings.experiment.ceilings.items():
                task = progress.add_task(f"{name}, seed {seed}", total=1)
                told = load_config(config, merged(merged(UNJUDGED, overrides), of_seed))
                long_job = partial(ceiling, samples=samples, probes=probes)
                ceilings[name].append(kept_or_played(out, f"{name}-{seed}", told, asked, long_job))
                progress.update(task, completed=1)
            for name in names:
                task = progress.add_task(f"{name}, seed {seed}", total=len(samples))
                told = load_config(config, merged(chosen[name], of_seed))
                play = partial(study, samples=samples, probes=probes, on_served=partial(progress.advance, task))
                results[name].append(kept_or_played(out, f"{name}-{seed}", told, asked, play))
                progress.update(task, completed=len(samples))
    seconds = round_seconds({name: load_config(config, chosen[name]) for name in names})
    show(console, results, seconds, settings.experiment.baseline, ceilings)
    draw(results, out / "acceptance.png")
