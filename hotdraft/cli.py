"""The `hotdraft` command. Heavy imports wait inside the commands, so that `--help` answers at once."""

import errno
import io
import logging
import os
import re
import sys
import tempfile
import warnings
from typing import Annotated, Any

import typer

from hotdraft.commands import config, controls, jobs, models, replay
from hotdraft.commands.adapters import versions
from hotdraft.commands.bench import bench
from hotdraft.commands.distill import distill
from hotdraft.commands.experiment import experiment
from hotdraft.commands.predistill import predistill
from hotdraft.commands.serve import serve
from hotdraft.commands.simulate import demo, simulate
from hotdraft.doctor.command import doctor
from hotdraft.gpu_check.command import gpu_check
from hotdraft.pipeline.system.log_tail import LOG_FORMAT
from hotdraft.pipeline.system.resources import core_limits, usable_cores

MLFLOW_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # by its own, MLflow tries for minutes; whatever matters is tried again
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "GIT_PYTHON_REFRESH": "quiet",  # where there is no git, as in containers, MLflow would tell how to get one
}

OTHERS = r"(transformers|peft|torch|lightning|mlflow|datasets)\b"
"""Libraries that call each other by names that will go: nothing that whoever reads our output could change."""

CHATTY = ("aiobotocore", "azure", "httpx", "matplotlib")
"""Libraries that tell of each request, of where credentials were found, of a cache of fonts."""

SHORTAGE = "allocate memory|out of memory|can't start new thread"
"""What torch, CUDA and Python say of a machine that has no more to give, as a RuntimeError."""

OWNER_ONLY = 0o077
"""What prompts and answers are written under: files are 0600, folders 0700, unless a default ACL says otherwise."""


def _print_version(wanted: bool) -> None:
    if wanted:
        from hotdraft.pipeline.system.version import installed_version

        typer.echo(f"hotdraft {installed_version()}")
        raise typer.Exit


app = typer.Typer(
    name="hotdraft",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def hotdraft(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Speculative decoding whose draft model learns from the traffic it serves.

    Examples:
    $ hotdraft serve smollm2 --draft smollm2-draft --self-improve
    $ hotdraft doctor --config smollm2
    $ hotdraft --install-completion

    The environment variable HOTDRAFT_CONFIG stands in for --config.
    """


for command in (serve, simulate, demo, distill, controls.k, predistill, experiment, bench, doctor, gpu_check):
    app.command()(command)
app.add_typer(versions.app, name="adapters")
app.add_typer(jobs.app, name="jobs")
app.add_typer(controls.app, name="loop")
app.add_typer(replay.app, name="replay")
app.add_typer(models.app, name="models")
app.add_typer(config.app, name="config")


class _Unheard(io.FileIO):
    """Standard error, where a full disk or a reader that is gone ends nobody who has more to do than to talk."""

    def write(self, data: Any) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError:
            return len(data)


def main() -> None:
    """Run a command; an error of the user's, or of the machine's, is one line and exit code 2."""
    os.umask(OWNER_ONLY)
    if isinstance(sys.stdout, io.TextIOWrapper):  # as standard error has it: a locale without a sign ends nothing
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stderr is sys.__stderr__ and isinstance(sys.stderr, io.TextIOWrapper):
        heard = io.BufferedWriter(_Unheard(sys.stderr.fileno(), "w", closefd=False))
        sys.stderr = io.TextIOWrapper(heard, sys.stderr.encoding, "backslashreplace", line_buffering=True)
    try:
        tempfile.gettempdir()
    except FileNotFoundError:  # all are full, or read only: libraries ask for one when imported, few ever use it
        tempfile.tempdir = os.environ.get("TMPDIR", "/tmp")
    if os.path.expanduser("~") == "~":  # neither HOME nor an entry in passwd: MLflow cannot be imported without
        os.environ["HOME"] = "/"  # as containers have it
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    warnings.filterwarnings("ignore", category=FutureWarning, module=OTHERS)
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it advises kernels that only 4-bit serving needs
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # tracebacks of what is told in a line
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # a store that is away is told of once
    for name, value in MLFLOW_DEFAULTS.items():
        os.environ.setdefault(name, value)
    if any(core_limits()):  # torch would make threads for all cores that containers share
        os.environ.setdefault("OMP_NUM_THREADS", str(usable_cores()))
    try:
        if sys.flags.optimize > 1:
            raise ValueError("PYTHONOPTIMIZE=2, or -OO, takes docstrings that transformers reads; 1 keeps them")
        app()
    except BrokenPipeError:  # whoever read what we print has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not re.search(SHORTAGE, str(error)):
            raise
        says = str(error) or "out of memory"
        if isinstance(error, OSError) and error.errno == errno.ENOENT and error.filename is None:
            says = "the working directory is deleted: change to one that is there"
        typer.secho(f"hotdraft: {says}", fg="red", err=True)
        sys.exit(2)
