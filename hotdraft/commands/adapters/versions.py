"""``hotdraft adapters``: look at the adapter versions and move the champion by hand."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hotdraft.commands.adapters.export import export
from hotdraft.commands.adapters.hub import pull, push
from hotdraft.commands.options import ConfigOption, JsonOption, VersionArgument, waiting
from hotdraft.pipeline.system.local_time import MINUTES, local_time

if TYPE_CHECKING:
    from rich.table import Table

    from hotdraft.pipeline.store.adapter_version import AdapterVersion
    from hotdraft.pipeline.store.registry import AdapterRegistry

app = typer.Typer(
    no_args_is_help=True,
    help="""Adapter versions: list, show, promote, roll back, unpin, export, push, pull.

    Examples:
    $ hotdraft adapters list --config smollm2
    $ hotdraft adapters rollback --config smollm2
    """,
)

IN_TABLES = ("status", "served/", "gate_by_domain", "watch/")
"""Tags that are shown otherwise, or are for servers to read."""

PINNED = "*"
PINNED_WORDS = "pinned by hand until `hotdraft adapters unpin`"
NONE_PINNED = f"no adapter serves, {PINNED_WORDS}"


def _few_words(reason: str) -> str:
    from hotdraft.pipeline.store.pin import MAX_REASON

    if len(reason) > MAX_REASON:
        raise typer.BadParameter(f"has {len(reason)} characters, of at most {MAX_REASON}")
    return reason


ReasonOption = Annotated[str, typer.Option(help="Kept with the version.", callback=_few_words)]


@app.command("list")
def list_versions(config: ConfigOption, as_json: JsonOption = False) -> None:
    """All versions, newest first.

    Examples:
    $ hotdraft adapters list --config smollm2
    $ hotdraft adapters list --config smollm2 --json
    """
    from rich.console import Console
    from rich.table import Table

    with _registry(config) as registry:
        versions, pinned = registry.versions(), registry.is_pinned()
    if as_json:
        typer.echo(json.dumps([asdict(version) for version in versions], indent=2))
        return
    if not versions:
        typer.echo("no adapters yet: the draft serves without one")
        return
    columns = ("version", "status", "created", "parent", "gain", "at least", "promised", "served", "requests")
    table = Table(*columns, box=None, padding=(0, 1, 0, 0))  # 80 characters wide
    for version in versions:
        table.add_row(*_cells(version))
    Console(markup=False).print(table)
    typer.echo("promised, served: accepted share of the examined tokens, by the gate and over that many requests")
    if pinned:
        typer.echo(f"{PINNED} {PINNED_WORDS}" if any(version.pinned for version in versions) else NONE_PINNED)


@app.command()
def show(version: VersionArgument, config: ConfigOption, as_json: JsonOption = False) -> None:
    """Everything known of one version: lineage, the gate's numbers, and what it did in service.

    Examples:
    $ hotdraft adapters show 3 --config smollm2
    """
    from rich.console import Console
    from rich.table import Column, Table

    with _registry(config) as registry:
        found = registry.version(version)
        metrics = registry.training_metrics(version)
    if as_json:
        typer.echo(json.dumps({**asdict(found), "training_metrics": metrics}, indent=2))
        return
    facts: dict[str, Any] = {
        "version": found.version,
        "status": f"{found.status}, {PINNED_WORDS}" if found.pinned else found.status,
        "aliases": ", ".join(found.aliases),
        "created": local_time(found.created_at),
        "training run": found.run_id,
        **{
            key.replace("by_hand", "by hand"): _time(value) if key.endswith("_at") else value
            for key, value in sorted(found.tags.items())
            if not key.startswith(IN_TABLES)
        },
        **{f"run: {key}": f"{value:.6g}" for key, value in sorted(metrics.items()) if key not in found.tags},
    }
    table = Table("", Column("", overflow="fold"), show_header=False)
    for key, value in facts.items():
        table.add_row(key, str(value))
    console = Console(markup=False)
    console.print(table)
    if (domains := _by_domain(found)).row_count:
        console.print(domains)
    if found.served is not None:
        console.print(_by_run(found))


@app.command()
def promote(
    version: VersionArgument, config: ConfigOption, reason: ReasonOption = "", as_json: JsonOption = False
) -> None:
    """Make VERSION the champion, pinned until `unpin`; a running server swaps it in between two rounds.

    While it is pinned the watchdog only warns, and jobs publish their versions without promoting them.

    Examples:
    $ hotdraft adapters promote 3 --config smollm2
    $ hotdraft adapters promote 3 -c smollm2 --reason "good at SQL" --json
    """
    with _registry(config) as registry:
        registry.promote(version, reason=reason, by_hand=True)
    _say_champion(version, as_json, pinned=True)


@app.command()
def rollback(config: ConfigOption, reason: ReasonOption = "", as_json: JsonOption = False) -> None:
    """Return to the champion before the current one, and pin that until `unpin`.

    Examples:
    $ hotdraft adapters rollback --config smollm2
    $ hotdraft adapters rollback -c smollm2 --reason "bad at SQL" --json
    """
    with _registry(config) as registry:
        version = registry.rollback(reason=reason, by_hand=True)
    _say_champion(version, as_json, pinned=True)


@app.command()
def unpin(config: ConfigOption, as_json: JsonOption = False) -> None:
    """Let the gate and the watchdog move the champion again, after `promote` or `rollback`.

    The watchdog judges what serves from its next swap on: a version that it warned of while it was pinned stays.

    Examples:
    $ hotdraft adapters unpin --config smollm2
    """
    with _registry(config) as registry:
        registry.unpin()
        version = registry.champion()
    _say_champion(version, as_json, pinned=False)


app.command()(export)
app.command()(push)
app.command()(pull)


def _say_champion(version: int, as_json: bool, *, pinned: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"champion": version, "pinned": pinned}))
        return
    words = f"version {version} is the champion" if version else "the draft serves without an adapter"
    typer.echo(f"{words}, {PINNED_WORDS if pinned else 'not pinned'}")


@contextmanager
def _registry(config: Path) -> "Iterator[AdapterRegistry]":
    """The registry; a store that cannot be used is an error of one line."""
    from hotdraft.pipeline.config.settings import load_config

    settings = load_config(config)
    with waiting("asking the registry"):
        from hotdraft.pipeline.store.connection import require_store, store_errors
        from hotdraft.pipeline.store.registry import AdapterRegistry

        require_store(settings)
        with store_errors(settings):
            yield AdapterRegistry(settings)


def _cells(version: "AdapterVersion") -> tuple[str, ...]:
    tags, served = version.tags, version.served
    return (
        str(version.version),
        f"{version.status} {PINNED}" if version.pinned else version.status,
        local_time(version.created_at, MINUTES),
        tags.get("parent", ""),
        _signed(tags.get("gain")),
        _signed(tags.get("gain_low")),
        _rate(tags.get("candidate_expected_acceptance")),
        _rate(served.acceptance_of_examined if served else None),
        str(served.requests) if served else "",
    )


def _by_domain(version: "AdapterVersion") -> "Table":
    """The gate's numbers beside what was served, both as accepted share of the examined tokens."""
    from rich.table import Table

    from hotdraft.pipeline.store.lineage import by_domain

    table = Table("domain", "held out", "champion", "promised", "served", "requests", title_justify="left")
    for domain, judged, counts in by_domain(version.tags):
        table.add_row(
            domain,
            str(judged.requests) if judged else "",
            _rate(judged.champion if judged else None),
            _rate(judged.candidate if judged else None),
            _rate(counts.acceptance_of_examined if counts else None),
            str(counts.requests) if counts else "",
        )
    return table


def _by_run(version: "AdapterVersion") -> "Table":
    from rich.table import Table

    from hotdraft.pipeline.store.served import served_by_run

    columns = ("served in run", "requests", "acceptance", "from", "until")
    table = Table(*columns, box=None, padding=(0, 1, 0, 0))  # 80 characters wide
    for run_id, counts in served_by_run(version.tags).items():
        times = (local_time(seconds, MINUTES) for seconds in (counts.since, counts.until))
        table.add_row(run_id, str(counts.requests), _rate(counts.acceptance_rate), *times)
    return table


def _rate(number: str | float | None) -> str:
    return _formatted(number, ".3f")


def _signed(number: str | None) -> str:
    return _formatted(number, "+.3f")


def _formatted(number: str | float | None, style: str) -> str:
    """Tags are anybody's to write: what is no number is shown as it is."""
    try:
        return "" if number is None else format(float(number), style)
    except ValueError:
        return str(number)


def _time(seconds: str) -> str:
    try:
        return local_time(float(seconds))
    except ValueError:
        return seconds
