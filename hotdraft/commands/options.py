"""Options that many commands have, so that they are called alike everywhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, get_args

import typer


def _dtypes() -> list[str]:
    from hotdraft.pipeline.config.section import Dtype

    return list(get_args(Dtype))


ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", envvar="HOTDRAFT_CONFIG", help="YAML file, or one that ships, as smollm2.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
VersionArgument = Annotated[
    int, typer.Argument(min=1, max=2**31 - 1, help="Version number, as `list` shows it.")  # MLflow's column
]

HostOption = Annotated[str | None, typer.Option(help="Address to listen at.")]
PortOption = Annotated[int | None, typer.Option(help="TCP port to listen at.")]
DtypeOption = Annotated[
    str | None, typer.Option(help="auto, float32, bfloat16 or float16.", autocompletion=_dtypes)
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        help="hotdraft, or vllm: vLLM's own server with the loop in it.",
        autocompletion=lambda: ["hotdraft", "vllm"],
    ),
]
KOption = Annotated[
    str | None, typer.Option("--k", help="Drafted tokens a round: a number, 0 for plain decoding, or auto.")
]


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Says on a terminal what takes its time: an import, or a store that is asked."""
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


def warn_of_nobody(run_dir: Path) -> None:
    """A relative folder is another one elsewhere."""
    from hotdraft.pipeline.system.run_lock import has_run

    if not has_run(run_dir):
        typer.echo(f"warning: nothing has run in {run_dir.absolute()} yet", err=True)


def check_writable(*files: Path) -> None:
    """Better told now than at the end of a run. Raises `typer.BadParameter`; leaves what is there as it is."""
    for file in files:
        try:
            was_there = file.exists()
            file.open("ab").close()
        except OSError as error:
            raise typer.BadParameter(f"{file} cannot be written: {error.strerror}") from error
        if not was_there:
            file.unlink()


def serving_overrides(
    *, server: dict[str, Any], engine: dict[str, Any], speculative: str | None = None, **top: Any
) -> dict[str, Any]:
    """What flags of `hotdraft serve` lay over file and environment, nested as in the file; None says nothing.

    Raises `ConfigError` for a `speculative` configuration, as vLLM has it, that says anything else or contradicts
    a flag.
    """
    from hotdraft.pipeline.config.section import ConfigError
    from hotdraft.pipeline.config.settings import given, merged
    from hotdraft.pipeline.config.speculative import read_speculative

    flags = {**top, "server": given(server), "engine": given(engine)}
    told = given(flags)
    if speculative is None:
        return told
    said = read_speculative(speculative)
    for flag, here, there in (
        ("--draft", top.get("draft"), said["draft"]),
        ("--k", engine.get("k"), said["engine"]["k"]),
    ):
        if here is not None and there not in (here, "auto"):
            raise ConfigError(f"{flag} says {here}, and --speculative-config {there or 'none'}: say it once")
    return merged(said, told)
