"""`hotdraft gpu-check`: is hotdraft right on this GPU, and how fast is it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from hotdraft.gpu_check.steps import Step

STYLES = {"ok": "green", "failed": "red", "skipped": "yellow"}


def gpu_check(
    out: Annotated[Path, typer.Option(help="Folder for gpu-check.json, gpu-check.md and each step's log.")],
    device: Annotated[str, typer.Option(help="cuda, cuda:N, or cpu, where the same steps run.")] = "cuda",
    minutes: Annotated[float, typer.Option(min=0.1, help="For all steps together.")] = 10.0,
    to: Annotated[
        str | None, typer.Option(help="Parameters the target is inflated to; by default 6b, on a CPU not at all.")
    ] = None,
    random: Annotated[
        bool, typer.Option("--random", help="Models made at random, also if SmolLM2 is here.")
    ] = False,
    wheels: Annotated[
        Path | None, typer.Option(help="Folder of wheels: packages that are missing, and SmolLM2.")
    ] = None,
) -> None:
    """Try everything on a GPU: whether it is right there, what it costs, and how fast it serves and learns.

    Each step runs by itself and within its share of the time: what fails, or needs
    a package that is not here, keeps no other from its turn. Exit code 1 if
    something failed.

    Examples:
    $ hotdraft gpu-check --out gpu
    $ hotdraft gpu-check --out gpu --minutes 25 --to 6b
    $ hotdraft gpu-check --out gpu --device cpu --random
    """
    import os
    import shlex
    from tempfile import TemporaryDirectory

    from rich.console import Console

    from hotdraft.commands.options import waiting

    with waiting("importing torch"):
        from hotdraft.gpu_check.plan import CheckPlan
        from hotdraft.gpu_check.report import write
        from hotdraft.gpu_check.run import run
        from hotdraft.gpu_check.wheels import installed
        from hotdraft.pipeline.models.inflate import parse_size
        from hotdraft.pipeline.models.loading import choose_device

    place = choose_device(device)
    size = to if to is not None or place.type == "cpu" else "6b"
    parameters = None if size is None else parse_size(size)
    out.mkdir(parents=True, exist_ok=True)
    command = shlex.join(["hotdraft", *sys.argv[1:]])
    console = Console()
    results: dict[str, dict[str, Any]] = {}
    with TemporaryDirectory(prefix="hotdraft-gpu-check-") as work, console.status("") as status:

        def tell(step: "Step", result: dict[str, Any] | None) -> None:
            if result is None:
                status.update(f"{step.name}: {step.shows}")
                return
            results[step.name] = result
            write(out, command, results)
            style = STYLES[result["state"]]
            console.print(
                f"[{style}]{result['state']:8}[/] {step.name:14} {result['seconds']:6.1f} s", highlight=False
            )
            for what in result["says"]:
                console.print(f"         {what}", markup=False, highlight=False)

        environ = dict(os.environ) if wheels is None else installed(wheels, Path(work), os.environ)
        plan = CheckPlan(work, str(place), random, parameters)
        plan.write()
        run(plan, 60 * minutes, out, environ, tell)
    console.print(f"{out / 'gpu-check.md'} has all figures", highlight=False)
    if any(result["state"] == "failed" for result in results.values()):
        raise typer.Exit(1)
