"""The house is as the design has it: imports point downward, and no room is too full to be seen at once."""

from pathlib import Path

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "hotdraft"
MOST_FILES = 14
NOT_CODE = {"shipped-configs", "shipped-drafts", "source", "static", "__pycache__"}


def rooms() -> list[Path]:
    folders = [PACKAGE, *(path for path in PACKAGE.rglob("*") if path.is_dir())]
    return [folder for folder in folders if not NOT_CODE & set(folder.parts)]


def test_imports_point_downward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logging.config.dictConfig", lambda settings: None)  # it would disable every logger
    config = str(ROOT / "pyproject.toml")
    assert lint_imports(config_filename=config, no_cache=True) == EXIT_STATUS_SUCCESS


def test_no_room_has_more_files_than_one_sees_at_once() -> None:
    tests = [path for path in (ROOT / "tests" / "unit").rglob("*") if path.is_dir() and path.name != "__pycache__"]
    counts = {folder: len(list(folder.glob("*.py"))) for folder in [*rooms(), *tests]}
    assert {str(folder): count for folder, count in counts.items() if count > MOST_FILES} == {}


def test_every_room_is_a_package_and_so_installed() -> None:
    assert [folder for folder in rooms() if not (folder / "__init__.py").is_file()] == []


@pytest.mark.parametrize("name", ["pipeline", "serving", "training"])
def test_the_signposts_lead_into_the_package(name: str) -> None:
    assert (ROOT / name).readlink() == Path("hotdraft") / name


def test_the_configurations_of_the_checkout_are_those_that_ship() -> None:
    assert (ROOT / "configs").readlink() == Path("hotdraft/pipeline/config/shipped-configs")
