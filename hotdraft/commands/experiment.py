"""`hotdraft experiment`: policies of the loop side by side on the same streams of requests, without a server."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hotdraft.commands.options import ConfigOption, waiting

if TYPE_CHECKING:
    from rich.console import Console

    from hotdraft.answering.experiment_answers import Answers
    from hotdraft.training.experiment.figures import Results
    from hotdraft.training.experiment.streams import Streams


def experiment(
    config: ConfigOption,
    out: Annotated[Path, typer.Option(help="Folder for results and charts; a run that was stopped goes on.")],
    suite: Annotated[
        str | None, typer.Option(help="Streams, policies and ceilings of a public protocol: shiftbench.")
    ] = None,
    stream: Annotated[list[str] | None, typer.Option(help="Only this one of the streams. Repeatable.")] = None,
    traffic: Annotated[
        list[Path] | None,
        typer.Option(help="JSONL file of prompts; several are played in turn, in place of all streams."),
    ] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="First prompts of each phase or file only.")] = None,
    policy: Annotated[list[str] | None, typer.Option(help="Only this one of the policies. Repeatable.")] = None,
) -> None:
    """Play streams under each policy and seed: acceptance, forgetting, training time, predicted speed.

    Everything but serving is real: the replay buffer, the trigger, jobs, the
    gate, the registry. The configuration, or the suite, names the policies.

    Examples:
    $ hotdraft experiment --config experiment-shift --out runs/shift
    $ hotdraft experiment -c my.yaml --suite shiftbench --out runs/bench
    $ hotdraft experiment -c experiment-shift --out runs/mine \\
        --traffic a.jsonl --traffic b.jsonl --policy static --policy ours
    """
    from rich.console import Console

    from hotdraft.pipeline.config.settings import load_config, merged

    with waiting("importing torch"):
        from hotdraft.answering.experiment_answers import answers_of
        from hotdraft.answering.round_cost import round_seconds
        from hotdraft.training.experiment.ceiling import UNJUDGED
        from hotdraft.training.experiment.report import draw, show
        from hotdraft.training.experiment.streams import read_streams
        from hotdraft.training.experiment.suite import read_suite
        from hotdraft.training.fit.progress_bar import quiet_trainer
        from hotdraft.training.fit.resume import JobInterruptedError

    protocol = {} if suite is None else read_suite(suite)
    settings = load_config(config, protocol)
    chosen = _only(policy, settings.experiment.policies, "experiment.policies")
    policies = {name: merged(protocol, overrides) for name, overrides in chosen.items()}
    known = read_streams(settings.experiment, traffic, requests)
    streams = _only(stream, known, "experiment.streams")

    quiet_trainer()
    ceilings = {
        name: merged(merged(protocol, UNJUDGED), overrides)
        for name, overrides in settings.experiment.ceilings.items()
    }
    answers = answers_of(settings, out / "answers", [one for seeds in streams.values() for one in seeds.values()])
    seconds = round_seconds({name: load_config(config, overrides) for name, overrides in policies.items()})
    console = Console(markup=False)
    for name, seeds in streams.items():
        folder = out if len(known) == 1 else out / name  # whichever of them are played now
        try:
            results, reached = _play(console, config, folder, seeds, answers, policies, ceilings)
        except JobInterruptedError as interruption:
            typer.echo(f"hotdraft: {interruption}; the same command plays what is not finished", err=True)
            raise typer.Exit(1) from None
        console.print(f"Stream: {name}", style="bold")
        show(console, results, seconds, settings.experiment.baseline, reached)
        draw(results, folder / "acceptance.png")


def _only(names: list[str] | None, known: dict[str, Any], where: str) -> dict[str, Any]:
    """Those of `known` that are asked for, all if none is."""
    if not known:
        raise typer.BadParameter(f"{where} names none to play: --config experiment-shift and --suite shiftbench do")
    if unknown := sorted(set(names or ()) - known.keys()):
        raise typer.BadParameter(f"{where} has {sorted(known)}, not {unknown}")
    return {name: known[name] for name in names or known}


def _play(
    console: "Console",
    config: Path,
    folder: Path,
    seeds: "Streams",
    answers: "Answers",
    policies: dict[str, dict[str, Any]],
    ceilings: dict[str, dict[str, Any]],
) -> "tuple[Results, Results]":
    """What the policies did on each seed's stream, and what the ceilings reached there."""
    from functools import partial

    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from hotdraft.pipeline.config.settings import load_config, merged
    from hotdraft.training.experiment.ceiling import ceiling
    from hotdraft.training.experiment.kept import kept_or_played
    from hotdraft.training.experiment.study import study

    results: dict[str, list[dict[str, Any]]] = {name: [] for name in policies}
    reached: dict[str, list[dict[str, Any]]] = {name: [] for name in ceilings}
    bar, count, taken, left = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    with Progress(TextColumn("{task.description}"), bar, count, taken, left, console=console) as progress:
        for seed, stream in seeds.items():
            samples, probes = answers.of(stream.prompts), answers.of(stream.probes)
            asked, of_seed = [*samples, *probes], {"distill": {"seed": seed}}
            learned = [*samples, *answers.of(stream.more)]
            for name, overrides in ceilings.items():
                task = progress.add_task(f"{name}, seed {seed}", total=1)
                told = load_config(config, merged(overrides, of_seed))
                long_job = partial(ceiling, samples=learned, probes=probes)
                found = kept_or_played(folder, f"{name}-{seed}", told, [*learned, *probes], long_job)
                reached[name].append(found)
                progress.update(task, completed=1)
            for name, overrides in policies.items():
                task = progress.add_task(f"{name}, seed {seed}", total=len(samples))
                told = load_config(config, merged(overrides, of_seed))
                play = partial(study, samples=samples, probes=probes, on_served=partial(progress.advance, task))
                results[name].append(kept_or_played(folder, f"{name}-{seed}", told, asked, play))
                progress.update(task, completed=len(samples))
    return results, reached
