"""``hotdraft loop`` and ``hotdraft k``: what may be changed while server and trainer run."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hotdraft.commands.options import ConfigOption, JsonOption, warn_of_nobody

if TYPE_CHECKING:
    from hotdraft.pipeline.loop.controls import Controls

app = typer.Typer(
    no_args_is_help=True,
    help="""The self-improvement loop: switch it on or off.

    Examples:
    $ hotdraft loop off --config smollm2
    $ hotdraft loop status --config smollm2
    """,
)


@app.command()
def on(config: ConfigOption, as_json: JsonOption = False) -> None:
    """Let the trainer begin jobs as traffic calls for them.

    Examples:
    $ hotdraft loop on --config smollm2
    """
    _loop(config, as_json, True)


@app.command()
def off(config: ConfigOption, as_json: JsonOption = False) -> None:
    """Let the trainer begin no job; one that runs is finished. Jobs by hand go on.

    Examples:
    $ hotdraft loop off --config smollm2
    """
    _loop(config, as_json, False)


@app.command()
def status(config: ConfigOption, as_json: JsonOption = False) -> None:
    """Whether the loop is on.

    Examples:
    $ hotdraft loop status --config smollm2
    """
    _loop(config, as_json, None)


def k(
    config: ConfigOption,
    setting: Annotated[
        str | None, typer.Argument(metavar="N|auto|config", help="What to set; only shown if left out.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Drafted tokens a round of a running server: a number, auto, or `config` for what is configured.

    Examples:
    $ hotdraft k --config smollm2
    $ hotdraft k 2 --config smollm2
    $ hotdraft k config --config smollm2
    """
    from hotdraft.pipeline.config.settings import load_config
    from hotdraft.pipeline.loop.controls import ControlError, ControlFile, k_setting, largest_k
    from hotdraft.pipeline.system.run_lock import has_run, is_held

    settings = load_config(config)
    file = ControlFile(settings.run_dir)
    warn_of_nobody(settings.run_dir)
    if setting is None:
        controls = file.read()
    else:
        is_number = re.fullmatch(r"\d{1,9}", setting) is not None  # of thousands of digits Python makes no number
        k = None if setting == "config" else k_setting(int(setting) if is_number else setting)
        if k is not None and settings.engine.kind == "vllm":
            raise ControlError("k is fixed for as long as vLLM serves: set engine.k and start it again")
        controls = file.override_k(k, largest_k(settings), settings.engine.k)
        if has_run(settings.run_dir) and not is_held(settings.run_dir, "server"):
            folder = settings.run_dir.absolute()
            typer.echo(
                f"warning: no server of this machine runs in {folder}: the next one begins with this", err=True
            )
    if controls.k is None:
        sentence = f"k is as configured ({settings.engine.k})"
    else:
        sentence = f"k is {controls.k} instead of the configured {settings.engine.k}"
    _tell(controls, sentence, as_json)


def _loop(config: Path, as_json: bool, enabled: bool | None) -> None:
    from hotdraft.pipeline.config.settings import load_config
    from hotdraft.pipeline.loop.controls import ControlFile

    run_dir = load_config(config).run_dir
    file = ControlFile(run_dir)
    warn_of_nobody(run_dir)
    controls = file.read() if enabled is None else file.switch_loop(enabled)
    _tell(controls, f"the loop is {'on' if controls.loop_enabled else 'off'}", as_json)


def _tell(controls: "Controls", sentence: str, as_json: bool) -> None:
    typer.echo(json.dumps(controls.model_dump(), indent=2) if as_json else sentence)
