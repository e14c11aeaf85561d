"""The `hotdraft` command. Heavy imports wait inside the commands, so that `--help` answers at once."""

import logging
import sys

import typer

from pipeline.commands.predistill import predistill

app = typer.Typer(
    name="hotdraft",
    help="Speculative decoding whose draft model learns from the traffic it serves.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(predistill)


@app.callback()
def _main() -> None:
    pass


def main() -> None:
    """Run a command; an error of the user's is one line and exit code 2."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        app()
    except ValueError as error:
        typer.secho(f"hotdraft: {error}", fg="red", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
