"""A machine that has torch and transformers, and neither an index nor the packages of the loop."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hotdraft.gpu_check.steps import STEPS
from hotdraft.gpu_check.wheels import installed

HIDDEN = (
    "alembic asgi_correlation_id bitsandbytes datasets fastapi gguf mlflow prometheus_fastapi_instrumentator "
    "pydantic pydantic_settings pythonjsonlogger sqlalchemy uvicorn"
)
PROGRAM = """
import importlib, importlib.machinery, sys
hidden = set(sys.argv[1].split())
finder = importlib.machinery.PathFinder
find = finder.find_spec
finder.find_spec = staticmethod(
    lambda name, *told, **more: None if name.split(".")[0] in hidden else find(name, *told, **more)
)
import hotdraft.cli
for module in sys.argv[2].split():
    importlib.import_module("hotdraft.gpu_check." + module)
assert not hidden & set(sys.modules)
"""


def test_all_but_what_says_what_it_needs_does_without() -> None:
    bare = {f"checks.{step.function.partition('.')[0]}" for step in STEPS if not step.needs}
    assert bare == {f"checks.{name}" for name in ("machine", "pair", "lossless", "distributions", "rounds")}
    modules = " ".join(("run", "report", "wheels", *sorted(bare)))
    done = subprocess.run([sys.executable, "-c", PROGRAM, HIDDEN, modules], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def write_wheel(folder: Path, name: str) -> None:
    about = f"{name}-1.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "value = 7")
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")


def test_wheels_are_imported_from_and_are_all_that_pip_is_told_of(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    write_wheel(wheels, "missing_so_far")
    environ = installed(wheels, tmp_path, {"PATH": "/usr/bin:/bin", "PYTHONPATH": "/before"})
    assert environ["PYTHONPATH"].endswith(":/before")
    assert (environ["PIP_NO_INDEX"], environ["PIP_FIND_LINKS"]) == ("1", str(wheels))
    program = [sys.executable, "-c", "import missing_so_far; print(missing_so_far.value)"]
    assert subprocess.run(program, env=environ, capture_output=True, text=True).stdout == "7\n"


def test_a_folder_without_wheels_or_with_a_broken_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no wheel in"):
        installed(tmp_path, tmp_path, {})
    (tmp_path / "broken-1-py3-none-any.whl").write_text("no archive")
    with pytest.raises(ValueError, match="pip does not take the wheels"):
        installed(tmp_path, tmp_path, {"PATH": "/usr/bin:/bin"})
