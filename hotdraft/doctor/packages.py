"""The versions of Python and of the libraries, against what hotdraft declares that it needs."""

import platform
import tomllib
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from hotdraft.doctor.finding import Finding, ok, problem, warning

SHOWN = ("torch", "transformers", "peft", "bitsandbytes", "lightning", "mlflow")
"""Libraries that are named even where they are as they should be; of the others only what is wrong."""
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def examine_packages() -> Iterator[Finding]:
    declared = _declared()
    if declared is None:
        yield warning(
            "packages",
            "hotdraft is not installed and this is no checkout, so its requirements are not known",
            "install it: `pip install .` in a checkout",
        )
        return
    python, requirements = declared
    yield from compare_python(platform.python_version(), python)
    yield from compare(requirements)


def compare_python(version: str, wanted: str) -> Iterator[Finding]:
    if SpecifierSet(wanted).contains(version, prereleases=True):
        yield ok("Python", f"{version} ({wanted})")
    else:
        yield problem("Python", f"{version} is not {wanted}", f"make an environment with Python {wanted}")


def compare(requirements: Sequence[Requirement]) -> Iterator[Finding]:
    """What is installed against what is wanted."""
    good = 0
    for wanted in requirements:
        mend = f'`pip install "{wanted}"`'
        try:
            found = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            yield problem(wanted.name, "is not installed", mend)
            continue
        if not wanted.specifier.contains(found, prereleases=True):
            yield problem(wanted.name, f"{found} is not {wanted.specifier}", mend)
        elif wanted.name in SHOWN:
            yield ok(wanted.name, f"{found} ({wanted.specifier})")
        else:
            good += 1
    yield ok("other packages", f"{good} as required")


def _declared() -> tuple[str, list[Requirement]] | None:
    """What Python and which libraries; a checkout's own file goes before what was once installed."""
    if PYPROJECT.is_file():
        project = tomllib.loads(PYPROJECT.read_text())["project"]
        return project["requires-python"], [Requirement(line) for line in project["dependencies"]]
    try:
        installed = metadata.metadata("hotdraft")
    except metadata.PackageNotFoundError:
        return None
    lines = [Requirement(line) for line in installed.get_all("Requires-Dist") or ()]
    needed = [line for line in lines if line.marker is None or line.marker.evaluate({"extra": ""})]
    return installed["Requires-Python"], needed
