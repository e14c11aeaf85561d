"""``hotdraft jobs``: start, watch and cancel distillation jobs of any origin."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hotdraft.commands.options import ConfigOption, JsonOption, warn_of_nobody
from hotdraft.pipeline.system.local_time import MINUTES, local_time

if TYPE_CHECKING:
    from hotdraft.pipeline.loop.job_record import Job
    from hotdraft.pipeline.loop.jobs import JobRecords

app = typer.Typer(
    no_args_is_help=True,
    help="""Distillation jobs: start, list, watch, show, cancel.

    Examples:
    $ hotdraft jobs start --config smollm2
    $ hotdraft jobs list --config smollm2
    """,
)

IdArgument = Annotated[str, typer.Argument(help="A job's id, as `list` shows it.")]


@app.command()
def start(config: ConfigOption, as_json: JsonOption = False) -> None:
    """Start a job in the background. `hotdraft distill --once` is one in the foreground.

    Examples:
    $ hotdraft jobs start --config smollm2
    """
    from hotdraft.pipeline.config.settings import load_config
    from hotdraft.pipeline.processes.job_process import start_job

    job = start_job(config, load_config(config), origin="command")
    _tell(job, f"job {job.id} runs", as_json)


@app.command("list")
def list_jobs(config: ConfigOption, as_json: JsonOption = False) -> None:
    """The newest jobs first, whoever started them.

    Examples:
    $ hotdraft jobs list --config smollm2
    $ hotdraft jobs list --json --config smollm2
    """
    from rich.console import Console
    from rich.table import Table

    jobs = _records(config).jobs()
    if as_json:
        typer.echo(json.dumps([asdict(job) for job in jobs], indent=2))
        return
    if not jobs:
        typer.echo("no job has run yet")
        return
    table = Table("id", "origin", "state", "started", "seconds", "version", "gain", box=None, padding=(0, 1, 0, 0))
    for job in jobs:
        gain = job.metrics.get("gain")
        table.add_row(
            job.id,
            job.origin,
            job.state,
            local_time(job.started_at, MINUTES),
            "" if job.ended_at is None else f"{job.ended_at - job.started_at:.0f}",
            "" if job.version is None else str(job.version),
            "" if gain is None else f"{gain:+.3f}",
        )
    Console(markup=False).print(table)


@app.command()
def show(job_id: IdArgument, config: ConfigOption, as_json: JsonOption = False) -> None:
    """Everything known of one job, and the last lines it logged.

    Examples:
    $ hotdraft jobs show 20261122-040506-1f2e3d --config smollm2
    """
    from rich.console import Console
    from rich.table import Table

    records = _records(config)
    job, log_tail = records.get(job_id), records.log_tail(job_id)
    if as_json:
        typer.echo(json.dumps({**asdict(job), "log_tail": log_tail}, indent=2))
        return
    facts: dict[str, Any] = {
        "id": job.id,
        "origin": job.origin,
        "state": job.state,
        "started": local_time(job.started_at),
        "ended": None if job.ended_at is None else local_time(job.ended_at),
        "version": job.version,
        "reason": job.reason,
        "progress": job.progress,
        "MLflow run": job.run_id,
        **{key: f"{value:.6g}" for key, value in sorted(job.metrics.items())},
        "log": records.log_path(job_id),
    }
    table = Table(show_header=False)
    for key, value in facts.items():
        if value is not None:
            table.add_row(key, str(value))
    Console(markup=False).print(table)
    typer.echo(log_tail)


@app.command()
def watch(
    config: ConfigOption,
    job_id: Annotated[str | None, typer.Argument(help="Of the newest job if left out.")] = None,
) -> None:
    """Follow a job until it ends: step, loss and time left.

    Examples:
    $ hotdraft jobs watch --config smollm2
    """
    from rich.console import Console

    from hotdraft.pipeline.loop.job_watch import follow_job

    records = _records(config)
    if job_id is None:
        newest = next(iter(records.jobs()), None)  # as one that runs is
        if newest is None:
            typer.echo("no job has run yet")
            return
        job_id = newest.id
    job = follow_job(records, job_id, Console(markup=False))
    version = "" if job.version is None else f", version {job.version}"
    typer.echo(f"job {job.id} {job.state}{version}: {job.reason}")


@app.command()
def cancel(job_id: IdArgument, config: ConfigOption, as_json: JsonOption = False) -> None:
    """End a job at its next step and drop it: no verdict, nothing published, not gone on with.

    Examples:
    $ hotdraft jobs cancel 20261122-040506-1f2e3d --config smollm2
    """
    _tell(_records(config).cancel(job_id), f"job {job_id} ends at its next step", as_json)


def _records(config: Path) -> "JobRecords":
    from hotdraft.pipeline.config.settings import load_config
    from hotdraft.pipeline.loop.jobs import JobRecords

    run_dir = load_config(config).run_dir
    warn_of_nobody(run_dir)
    return JobRecords(run_dir)


def _tell(job: "Job", sentence: str, as_json: bool) -> None:
    typer.echo(json.dumps(asdict(job), indent=2) if as_json else sentence)
