"""`hotdraft models`: obtain models without a model hub."""

import json
from typing import Annotated

import typer

from pipeline.commands.options import JsonOption

app = typer.Typer(no_args_is_help=True)


@app.callback()
def models() -> None:
    """Models that need no model hub.

    Examples:
    $ hotdraft models fetch smollm2
    """  # a callback keeps `fetch` a sub-command while it is the only one


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="smollm2: SmolLM2-135M-Instruct, Apache-2.0.")],
    as_json: JsonOption = False,
) -> None:
    """Download a model once and store it in the cache folder ($HOTDRAFT_CACHE or ~/.cache/hotdraft).

    Examples:
    $ hotdraft models fetch smollm2
    $ HOTDRAFT_CACHE=/data/models hotdraft models fetch smollm2 --json
    """
    from rich.console import Console

    with Console(stderr=True).status(f"looking for {name}") as status:
        from pipeline.fetch import fetch as obtain

        folder = obtain(name, on_step=status.update)
    typer.echo(json.dumps({"model": name, "path": str(folder)}) if as_json else f"{name} is in {folder}")
