"""Options that many commands have, so that they are called alike everywhere."""

from pathlib import Path
from typing import Annotated, Any, get_args

import typer


def _dtypes() -> list[str]:
    from hotdraft.pipeline.config.section import Dtype

    return list(get_args(Dtype))


ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", envvar="HOTDRAFT_CONFIG", help="YAML configuration file.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]

HostOption = Annotated[str | None, typer.Option(help="Address to listen at.")]
PortOption = Annotated[int | None, typer.Option(help="TCP port to listen at.")]
DtypeOption = Annotated[
    str | None, typer.Option(help="auto, float32, bfloat16 or float16.", autocompletion=_dtypes)
]
KOption = Annotated[
    str | None, typer.Option("--k", help="Drafted tokens a round: a number, 0 for plain decoding, or auto.")
]


def serving_overrides(host: str | None, port: int | None, dtype: str | None, k: str | None) -> dict[str, Any]:
    """What the flags of `hotdraft serve` lay over file and environment, nested as in the file."""
    from hotdraft.pipeline.config.settings import given

    server = {"host": host, "port": port}
    flags: dict[str, Any] = {"dtype": dtype, "server": given(server), "engine": given({"k": k})}
    return {key: value for key, value in given(flags).items() if value != {}}
