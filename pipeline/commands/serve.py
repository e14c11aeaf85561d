"""`hotdraft serve`: the OpenAI-compatible server, with the loop beside it if asked."""

from pathlib import Path
from typing import Annotated, Any

import typer


def serve(
    config: Annotated[Path, typer.Option("--config", "-c", help="YAML configuration file.")],
    host: Annotated[str | None, typer.Option(help="Address to listen at.")] = None,
    port: Annotated[int | None, typer.Option(help="TCP port to listen at.")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.")] = None,
    k: Annotated[
        str | None, typer.Option("--k", help="Drafted tokens a round: a number, 0 for plain decoding, or auto.")
    ] = None,
    self_improve: Annotated[
        bool, typer.Option("--self-improve", help="Run the trainer beside the server and serve what it improves.")
    ] = False,
) -> None:
    """Serve the target, sped up by the draft; record what the draft got wrong."""
    from pipeline.config import load_config

    overrides: dict[str, Any] = {
        "dtype": dtype,
        "server": {"host": host, "port": port},
        "engine": {"k": k},
    }
    overrides = _without_none(overrides)
    settings = load_config(config, overrides)

    from serving.service import serve as run

    run(settings, config_path=config, overrides=overrides, self_improve=self_improve)


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    kept = {key: _without_none(v) if isinstance(v, dict) else v for key, v in values.items() if v is not None}
    return {key: value for key, value in kept.items() if value != {}}
