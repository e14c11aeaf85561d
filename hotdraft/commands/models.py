"""`hotdraft models`: obtain models, and make them fit."""

import json
from pathlib import Path
from typing import Annotated

import typer

from hotdraft.commands.options import JsonOption

app = typer.Typer(no_args_is_help=True)


@app.callback()
def models() -> None:
    """Models: fetch the demo's, inflate one to a larger one's cost, give a draft its target's tokens.

    Examples:
    $ hotdraft models fetch smollm2
    """


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
        from hotdraft.pipeline.models.fetch import fetch as obtain

        folder = obtain(name, on_step=status.update)
    typer.echo(json.dumps({"model": name, "path": str(folder)}) if as_json else f"{name} is in {folder}")


@app.command()
def inflate(
    name: Annotated[str, typer.Argument(help="A model by name, hub id or folder; llama, mistral or qwen2.")],
    to: Annotated[str, typer.Option(help="Parameters that it is to have, as 500m, 1.5b or 6b.")],
    out: Annotated[Path, typer.Option(help="New or empty folder for it.")],
    as_json: JsonOption = False,
) -> None:
    """Make a model of the cost of a larger one with the answers of a small one, to measure speed at that size.

    Examples:
    $ hotdraft models inflate smollm2 --to 1.5b --out runs/smollm2-1.5b
    $ hotdraft models inflate smollm2 --to 6b --out runs/smollm2-6b --json
    """
    from rich.console import Console

    with Console(stderr=True).status(f"inflating {name}") as status:
        from hotdraft.pipeline.models.inflate import inflate as enlarge
        from hotdraft.pipeline.models.inflate import parse_size

        parameters = enlarge(name, parse_size(to), out, on_step=status.update)
    told = f"{out} has {parameters:,} parameters and the answers of {name}"
    typer.echo(json.dumps({"model": name, "path": str(out), "parameters": parameters}) if as_json else told)


@app.command()
def transplant(
    name: Annotated[str, typer.Argument(help="The donor, by name, hub id or folder.")],
    to: Annotated[str, typer.Option(help="The target whose tokens it gets, likewise.")],
    out: Annotated[Path, typer.Option(help="New or empty folder for the draft.")],
    as_json: JsonOption = False,
) -> None:
    """Make a draft for a target of a model that has other tokens.

    What both vocabularies share the donor keeps, other tokens of the target are the
    means of those that spell them; the rest it learns from traffic, or before there
    is any: `hotdraft predistill --draft OUT`.

    Examples:
    $ hotdraft models transplant org/small --to org/target --out runs/draft
    $ hotdraft models transplant runs/small --to smollm2 --out runs/draft --json
    """
    from rich.console import Console

    with Console(stderr=True).status(f"giving {name} the tokens of {to}") as status:
        from hotdraft.pipeline.models.transplant import transplant as give_tokens

        found = give_tokens(name, to, out, on_step=status.update)
    told = (
        f"{out} is {name} with the tokens of {to}: {found.shared:,} are its own, {found.spelled:,} are spelled by "
        f"several, {found.unknown:,} it cannot write"
    )
    typer.echo(json.dumps({"model": name, "path": str(out), **found._asdict()}) if as_json else told)
