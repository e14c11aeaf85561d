"""``hotdraft replay``: what the replay buffer holds, and whether it calls for a job."""

import json
from dataclasses import asdict, replace

import typer

from hotdraft.commands.options import ConfigOption, JsonOption, waiting, warn_of_nobody
from hotdraft.pipeline.system.local_time import local_time

app = typer.Typer(no_args_is_help=True)


@app.callback()
def replay() -> None:
    """The replay buffer: what was recorded, and whether a job is due.

    Examples:
    $ hotdraft replay stats --config smollm2
    """


@app.command()
def stats(
    config: ConfigOption,
    as_json: JsonOption = False,
) -> None:
    """Count the recorded requests, tokens and rejections; acceptance by domain and draft version.

    Examples:
    $ hotdraft replay stats --config smollm2
    $ hotdraft replay stats --config smollm2 --json
    """
    from rich.console import Console
    from rich.table import Table

    from hotdraft.pipeline.config.settings import load_config

    settings = load_config(config)
    warn_of_nobody(settings.run_dir)
    with waiting("reading the replay buffer"):
        from hotdraft.pipeline.replay.buffer import ReplayBuffer

        found = ReplayBuffer.of(settings).stats()
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2))
        return
    table = Table(show_header=False, title=f"replay buffer {settings.replay_url}")
    table.add_row("requests", f"{found.requests:,}")
    table.add_row("output tokens", f"{found.output_tokens:,}")
    table.add_row("drafted", f"{found.drafted:,}")
    table.add_row("rejected", f"{found.rejected:,}")
    table.add_row("shards", f"{found.shards:,}")
    if found.quarantined:
        table.add_row("set aside", "\n".join(found.quarantined))
    table.add_row("size", f"{found.bytes / 1e6:,.1f} MB of {settings.replay.max_bytes / 1e6:,.0f} MB")
    for label, seconds in (("oldest", found.oldest), ("newest", found.newest)):
        if seconds is not None:
            table.add_row(label, local_time(seconds))
    console = Console(markup=False)
    console.print(table)
    for title, parts in (("domain", found.by_domain), ("draft version", found.by_draft_version)):
        by = Table(title, "requests", "drafted", "accepted", "acceptance rate", box=None, padding=(0, 1, 0, 0))
        for name, its in sorted(parts.items()):
            rate = "" if its.acceptance_rate is None else f"{its.acceptance_rate:.3f}"
            by.add_row(str(name), f"{its.requests:,}", f"{its.drafted:,}", f"{its.accepted:,}", rate)
        console.print(by)
    typer.echo("drafted, accepted, rejected: of the examined tokens; what follows a rejected one is not recorded")


@app.command()
def due(config: ConfigOption, as_json: JsonOption = False) -> None:
    """Say whether a distillation job is due by `distill.trigger`, and why or why not; nothing is started.

    Counted is what was recorded since the job that finished last, whoever ran it.
    While the loop is off none is due.

    Examples:
    $ hotdraft replay due --config smollm2
    $ hotdraft replay due --config smollm2 --json
    """
    from hotdraft.pipeline.config.settings import load_config

    settings = load_config(config)
    warn_of_nobody(settings.run_dir)
    with waiting("counting what is new"):
        from hotdraft.pipeline.loop.controls import ControlFile
        from hotdraft.pipeline.loop.jobs import JobRecords
        from hotdraft.pipeline.loop.trigger import DistillTrigger
        from hotdraft.pipeline.models.loading import weights_id
        from hotdraft.pipeline.replay.buffer import ReplayBuffer
        from hotdraft.training.batches.mixture import held_out_in_mixture

        buffer, records = ReplayBuffer.of(settings), JobRecords(settings.run_dir)
        held_out, running = len(held_out_in_mixture(settings)), records.running()
        target_id = weights_id(settings.target)
        decision = DistillTrigger(
            settings, buffer, records.last_job(), held_out=held_out, target_id=target_id
        ).decide()
        loop_enabled = ControlFile(settings.run_dir).read().loop_enabled
    if not loop_enabled:
        decision = replace(decision, due=False, reason=f"the loop is off; {decision.reason}")
    if as_json:
        typer.echo(json.dumps({**asdict(decision), "loop_enabled": loop_enabled}, indent=2))
    else:
        typer.echo(f"due: {decision.reason}" if decision.due else f"not due; {decision.reason}")
        if running is not None:
            typer.echo(f"job {running.id} is running; what it learns from is counted here until it ends")
