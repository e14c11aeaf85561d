"""``hotdraft adapters``: look at the adapter versions and move the champion by hand."""

import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.commands.options import ConfigOption, JsonOption

if TYPE_CHECKING:
    from pipeline.registry import AdapterRegistry, AdapterVersion

app = typer.Typer(
    no_args_is_help=True,
    help="""Adapter versions: list, show, promote, roll back.

    Examples:
    $ hotdraft adapters list --config configs/smollm2.yaml
    $ hotdraft adapters rollback --config configs/smollm2.yaml
    """,
)

ReasonOption = Annotated[str, typer.Option(help="Kept with the version.")]
VersionArgument = Annotated[int, typer.Argument(min=1, help="Version number, as `list` shows it.")]


@app.command("list")
def list_versions(config: ConfigOption, as_json: JsonOption = False) -> None:
    """All versions, newest first.

    Examples:
    $ hotdraft adapters list --config configs/smollm2.yaml
    $ hotdraft adapters list --config configs/smollm2.yaml --json
    """
    from rich.console import Console
    from rich.table import Table

    versions = _registry(config).versions()
    if as_json:
        typer.echo(json.dumps([asdict(version) for version in versions], indent=2))
        return
    if not versions:
        typer.echo("no adapters yet: the draft serves without one")
        return
    columns = ("version", "status", "aliases", "created", "parent", "gain", "interval", "requests")
    table = Table(*columns, box=None, padding=(0, 1, 0, 0))  # 80 characters wide
    for version in versions:
        table.add_row(*_cells(version))
    Console().print(table)


@app.command()
def show(version: VersionArgument, config: ConfigOption, as_json: JsonOption = False) -> None:
    """Everything known of one version: the gate's numbers, its lineage and its training run.

    Examples:
    $ hotdraft adapters show 3 --config configs/smollm2.yaml
    """
    from rich.console import Console
    from rich.table import Table

    registry = _registry(config)
    found = registry.version(version)
    metrics = registry.training_metrics(version)
    if as_json:
        typer.echo(json.dumps({**asdict(found), "training_metrics": metrics}, indent=2))
        return
    facts: dict[str, Any] = {
        "version": found.version,
        "status": found.status,
        "aliases": ", ".join(found.aliases),
        "created": _time(found.created_at),
        "training run": found.run_id,
        **{key: value for key, value in sorted(found.tags.items()) if key != "status"},
        **{f"run: {key}": f"{value:.6g}" for key, value in sorted(metrics.items())},
    }
    table = Table(show_header=False)
    for key, value in facts.items():
        table.add_row(key, str(value))
    Console().print(table)


@app.command()
def promote(
    version: VersionArgument, config: ConfigOption, reason: ReasonOption = "by hand", as_json: JsonOption = False
) -> None:
    """Make VERSION the champion; a running server swaps it in between two rounds.

    Examples:
    $ hotdraft adapters promote 3 --config configs/smollm2.yaml
    $ hotdraft adapters promote 3 -c configs/smollm2.yaml --reason "good at SQL" --json
    """
    _registry(config).promote(version, reason=reason)
    _say_champion(version, as_json)


@app.command()
def rollback(config: ConfigOption, reason: ReasonOption = "by hand", as_json: JsonOption = False) -> None:
    """Return to the champion before the current one.

    Examples:
    $ hotdraft adapters rollback --config configs/smollm2.yaml
    $ hotdraft adapters rollback -c configs/smollm2.yaml --reason "bad at SQL" --json
    """
    _say_champion(_registry(config).rollback(reason=reason), as_json)


def _say_champion(version: int, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"champion": version}))
    else:
        typer.echo(f"version {version} is the champion" if version else "the draft serves without an adapter")


def _registry(config: Path) -> "AdapterRegistry":
    from pipeline.config import load_config
    from pipeline.registry import AdapterRegistry

    return AdapterRegistry(load_config(config))


def _cells(version: "AdapterVersion") -> tuple[str, ...]:
    tags = version.tags
    gain, low, high = (_signed(tags.get(name)) for name in ("gain", "gain_low", "gain_high"))
    return (
        str(version.version),
        version.status,
        ", ".join(version.aliases),
        _time(version.created_at, "%m-%d %H:%M"),
        tags.get("parent", ""),
        gain,
        f"{low}…{high}" if low else "",
        tags.get("held_out_requests", ""),
    )


def _signed(number: str | None) -> str:
    return "" if number is None else f"{float(number):+.3f}"


def _time(seconds: float, style: str = "%Y-%m-%d %H:%M:%S") -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime(style)
