"""``hotdraft config``: what a configuration comes to, and what may stand in one."""

import json
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hotdraft.commands.options import (
    ConfigOption,
    DtypeOption,
    HostOption,
    JsonOption,
    KOption,
    PortOption,
    serving_overrides,
)

if TYPE_CHECKING:
    from hotdraft.pipeline.config.origins import Setting

app = typer.Typer(
    no_args_is_help=True,
    help="""The configuration: every value with its origin, and its JSON schema.

    Examples:
    $ hotdraft config show --config smollm2
    $ hotdraft config reference
    $ hotdraft config schema
    """,
)


@app.command()
def show(
    config: ConfigOption,
    host: HostOption = None,
    port: PortOption = None,
    dtype: DtypeOption = None,
    k: KOption = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only what is not a default.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Every value after file, environment and flags are merged, and where it comes from. Secrets are masked.

    Examples:
    $ hotdraft config show --config smollm2
    $ hotdraft config show -c smollm2 --port 9000 --k 3
    $ hotdraft config show -c smollm2 --changed
    $ HOTDRAFT_ENGINE__K=2 hotdraft config show -c smollm2 --json
    """
    from hotdraft.pipeline.config.origins import explain

    settings = explain(config, serving_overrides(dtype=dtype, server={"host": host, "port": port}, engine={"k": k}))
    if changed:
        settings = [one for one in settings if one.origin.origin != "default"]
    if as_json:
        typer.echo(json.dumps({one.key: {"value": one.value, **vars(one.origin)} for one in settings}, indent=2))
        return
    _print_table(settings)


@app.command()
def schema() -> None:
    """The JSON schema of a configuration file, for editors that complete and check YAML.

    Examples:
    $ hotdraft config schema > hotdraft.schema.json
    """
    from hotdraft.pipeline.config.settings import HotdraftConfig

    typer.echo(json.dumps(HotdraftConfig.model_json_schema(), indent=2))


@app.command()
def reference() -> None:
    """Every key with what it may be, its default and its meaning, as Markdown.

    Examples:
    $ hotdraft config reference > configuration.md
    """
    from hotdraft.pipeline.config.reference import reference as written

    typer.echo(written(), nl=False)


def _print_table(settings: "list[Setting]") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("key", "value", "origin"):
        table.add_column(heading, overflow="fold")  # nothing is cut off
    ordered = sorted(settings, key=lambda one: "." in one.key)  # keys of no section come first
    for section, members in groupby(ordered, key=_section):
        if section:
            table.add_section()
            table.add_row(f"[bold]{section}[/]")
        for one in members:
            key = one.key.removeprefix(f"{section}.")
            style = "dim" if one.origin.origin == "default" else None
            origin = Path(one.origin.where or one.origin.origin).name
            table.add_row(f"  {key}" if section else key, _text(one), origin, style=style)
    Console().print(table)


def _section(setting: "Setting") -> str:
    section, dot, _ = setting.key.partition(".")
    return section if dot else ""


def _text(setting: "Setting") -> str:
    from rich.markup import escape

    value = setting.value
    return escape(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
