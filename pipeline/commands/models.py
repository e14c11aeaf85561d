"""`hotdraft models`: obtain models without a model hub."""

from typing import Annotated

import typer

app = typer.Typer(help="Models that need no model hub.", no_args_is_help=True)


@app.command()
def fetch(name: Annotated[str, typer.Argument(help="smollm2: SmolLM2-135M-Instruct, Apache-2.0.")]) -> None:
    """Download a model once and store it in the cache folder ($HOTDRAFT_CACHE or ~/.cache/hotdraft)."""
    from pipeline.fetch import fetch as obtain

    typer.echo(f"{name} is in {obtain(name)}")
