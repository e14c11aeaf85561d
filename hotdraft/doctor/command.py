"""`hotdraft doctor`: is everything here that serving and learning need, and if not, how to mend it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hotdraft.commands.options import JsonOption

if TYPE_CHECKING:
    from hotdraft.doctor.finding import Finding

LOCAL_SECONDS = 60.0
"""For what takes long only if a disk does, or the import of a library."""
STORE_SECONDS = 15.0


def doctor(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", envvar="HOTDRAFT_CONFIG", help="YAML configuration file, if there is one."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Look over machine, packages, models, stores, port and jobs. Exit code 1 if there is a problem.

    Examples:
    $ hotdraft doctor
    $ hotdraft doctor --config smollm2
    $ hotdraft doctor -c smollm2 --json

    Nothing is changed, downloaded or loaded, and no store is waited for longer
    than 15 seconds.
    """
    from dataclasses import asdict

    findings = _findings(config)
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _show(findings)
    if any(finding.state == "problem" for finding in findings):
        raise typer.Exit(1)


def _findings(path: Path | None) -> "list[Finding]":
    from rich.console import Console

    from hotdraft.doctor.finding import within
    from hotdraft.doctor.settings import read_settings

    settings, findings = read_settings(path)
    with Console(stderr=True).status("importing torch") as status:
        from hotdraft.doctor.leftover_jobs import examine_jobs
        from hotdraft.doctor.machine import examine_machine
        from hotdraft.doctor.model_files import examine_models
        from hotdraft.doctor.model_fit import examine_fit
        from hotdraft.doctor.packages import examine_packages
        from hotdraft.doctor.run_dir import examine_run_dir
        from hotdraft.doctor.server import examine_access, examine_files, examine_port
        from hotdraft.doctor.stores import examine_mlflow, examine_replay
        from hotdraft.doctor.vllm import examine_vllm

        examinations = [
            ("machine", LOCAL_SECONDS, lambda: examine_machine(settings)),
            ("packages", LOCAL_SECONDS, examine_packages),
            ("models", LOCAL_SECONDS, lambda: examine_models(settings)),
        ]
        if settings is not None and path is not None:
            examinations += [
                ("models together", LOCAL_SECONDS, lambda: examine_fit(settings)),
                ("vLLM", LOCAL_SECONDS, lambda: examine_vllm(settings)),
                ("run_dir", STORE_SECONDS, lambda: examine_run_dir(settings)),
                ("replay buffer", STORE_SECONDS, lambda: examine_replay(settings)),
                ("MLflow store", STORE_SECONDS, lambda: examine_mlflow(settings)),
                ("port", STORE_SECONDS, lambda: examine_port(settings)),
                ("open files", LOCAL_SECONDS, lambda: examine_files(settings)),
                ("API keys", STORE_SECONDS, lambda: examine_access(settings)),
                ("jobs", STORE_SECONDS, lambda: examine_jobs(settings, path)),
            ]
        for about, seconds, examine in examinations:
            status.update(about)
            findings += within(seconds, about, examine)
    return findings


def _show(findings: "list[Finding]") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    styles = {"ok": "green", "warning": "yellow", "problem": "red"}
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for finding in findings:
        says = Text(finding.says)
        if finding.mend is not None:
            says.append(f"\n→ {finding.mend}", style="bold")
        table.add_row(Text(finding.state, style=styles[finding.state]), finding.about, says)
    console = Console(markup=False)
    console.print(table)
    counts = {state: sum(one.state == state for one in findings) for state in ("problem", "warning")}
    summary = ", ".join(f"{count} {state}{'' if count == 1 else 's'}" for state, count in counts.items())
    console.print(summary, highlight=False)
