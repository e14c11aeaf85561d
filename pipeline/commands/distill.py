"""`hotdraft distill`: teach the draft what the target answered."""

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.options import ConfigOption

if TYPE_CHECKING:
    from pipeline.config import HotdraftConfig


def distill(
    config: ConfigOption,
    once: Annotated[bool, typer.Option("--once", help="Run one job now (the default).")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Run jobs as traffic calls for them.")] = False,
) -> None:
    """Distil recorded traffic into a new adapter, judge it, and promote it if it is better.

    Examples:
    $ hotdraft distill --config configs/smollm2.yaml
    $ hotdraft distill --config configs/smollm2.yaml --follow
    """
    from pipeline.config import load_config

    if once and follow:
        raise typer.BadParameter("--once and --follow exclude each other")
    settings = load_config(config)
    if follow:
        _follow(settings)
    else:
        _once(settings)


def _follow(settings: "HotdraftConfig") -> None:
    import signal
    import threading

    from training.follow import follow
    from training.progress_bar import quiet_trainer

    quiet_trainer()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    follow(settings, stop)


def _once(settings: "HotdraftConfig") -> None:
    from rich.console import Console
    from rich.table import Table

    from pipeline.registry import AdapterRegistry
    from pipeline.replay import ReplayBuffer
    from training.job import run_job
    from training.progress_bar import quiet_trainer
    from training.run import JobInterruptedError

    quiet_trainer()
    console = Console()
    buffer = ReplayBuffer.of(settings)
    registry = AdapterRegistry(settings)
    try:
        result = run_job(settings, buffer=buffer, registry=registry, progress=console.is_terminal)
    except JobInterruptedError as interruption:
        console.print(f"{interruption}; the next `hotdraft distill` goes on from there")
        raise typer.Exit(1) from None
    verdict = result.verdict
    table = Table(show_header=False, title="accepted" if verdict.accepted else "rejected")
    table.add_row("version", "none" if result.version is None else str(result.version))
    table.add_row("reason", verdict.reason)
    for domain, gain in verdict.by_domain.items():
        table.add_row(f"gain on {domain}", f"{gain:+.3f}")
    for name in ("champion_expected_acceptance", "candidate_expected_acceptance", "final_loss"):
        if name in result.metrics:
            table.add_row(name.replace("_", " "), f"{result.metrics[name]:.3f}")
    table.add_row("steps", f"{result.metrics.get('steps', 0):.0f}")
    table.add_row("seconds", f"{result.seconds:.0f}")
    table.add_row("MLflow run", result.run_id)
    console.print(table)
