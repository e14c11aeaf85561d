"""`hotdraft distill`: teach the draft what the target answered."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from hotdraft.commands.options import ConfigOption, waiting
from hotdraft.pipeline.processes.stop_signals import stopped_by_signals

if TYPE_CHECKING:
    from rich.console import Console

    from hotdraft.pipeline.config.settings import HotdraftConfig
    from hotdraft.training.online.job import JobResult


def distill(
    config: ConfigOption,
    once: Annotated[bool, typer.Option("--once", help="Run one job now (the default).")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Run jobs as traffic calls for them.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the job's record instead of a table.")] = False,
    job: Annotated[str | None, typer.Option(hidden=True, help="Job on record that this process is to run.")] = None,
    lock: Annotated[int, typer.Option(hidden=True, help="The job's lock, as an open file.")] = -1,
) -> None:
    """Distil recorded traffic into a new adapter, judge it, and promote it if it is better.

    One job ends with code 0 if there is a verdict, whether accepted or rejected, and with 1 if there is none:
    it could not begin, was cancelled, or was interrupted, and then the next goes on from there. 2 says that
    the configuration is wrong or a store is away.

    Examples:
    $ hotdraft distill --config smollm2
    $ hotdraft distill --config smollm2 --json
    $ hotdraft distill --config smollm2 --follow
    """
    from hotdraft.pipeline.config.settings import load_config

    if once and follow:
        raise typer.BadParameter("--once and --follow exclude each other")
    if follow and as_json:
        raise typer.BadParameter("--json goes with one job")
    settings = load_config(config)
    if follow:
        _follow(settings)
    else:
        _once(settings, as_json, job, lock)


def _follow(settings: "HotdraftConfig") -> None:
    from hotdraft.pipeline.system.run_lock import run_lock

    with run_lock(settings.run_dir, "trainer"), stopped_by_signals() as stop:
        from hotdraft.training.fit.progress_bar import quiet_trainer
        from hotdraft.training.online.follow import follow

        quiet_trainer()
        follow(settings, stop)


def _once(settings: "HotdraftConfig", as_json: bool, job_id: str | None, lock: int) -> None:
    from dataclasses import asdict

    from rich.console import Console

    from hotdraft.pipeline.config.section import ConfigError
    from hotdraft.pipeline.loop.jobs import JobEndedError, JobRecords, JobRunningError

    with waiting("importing torch"):
        from hotdraft.pipeline.replay.buffer import ReplayBuffer
        from hotdraft.pipeline.store.registry import AdapterRegistry
        from hotdraft.training.fit.progress_bar import quiet_trainer
        from hotdraft.training.fit.resume import JobInterruptedError
        from hotdraft.training.online.context import JobCancelledError, JobError
        from hotdraft.training.online.job import run_job

    quiet_trainer()
    console = Console(stderr=as_json, markup=False)
    records = JobRecords(settings.run_dir)
    result = None
    with stopped_by_signals() as stop:
        try:
            job = records.begin("command") if job_id is None else records.inherit(job_id, lock)
        except (JobRunningError, JobEndedError) as error:
            typer.secho(f"hotdraft: {error}", fg="red", err=True)
            raise typer.Exit(1) from None
        try:
            buffer = ReplayBuffer.of(settings)
        except ConfigError as error:
            job.end("failed", str(error))
            raise
        try:
            result = run_job(
                settings,
                buffer=buffer,
                registry=AdapterRegistry(settings),
                progress=console.is_terminal,
                stop=stop,
                job=job,
            )
        except JobInterruptedError as interruption:
            typer.echo(f"{interruption}; the next `hotdraft distill` goes on from there", err=True)
        except (JobCancelledError, JobError) as error:
            typer.secho(f"hotdraft: {error}", fg="red", err=True)
    if as_json:
        typer.echo(json.dumps(asdict(job.job), indent=2))
    elif result is not None:
        _show(result, console)
    if result is None:
        raise typer.Exit(1)


def _show(result: "JobResult", console: "Console") -> None:
    from rich.table import Table

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
