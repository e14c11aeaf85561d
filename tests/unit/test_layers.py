"""The imports between the packages are those of the design."""

import tomllib
from pathlib import Path

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).parents[2]
SETTINGS = ROOT / "pyproject.toml"


def test_imports_point_downward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logging.config.dictConfig", lambda settings: None)  # it would disable every logger
    assert lint_imports(config_filename=str(SETTINGS), no_cache=True) == EXIT_STATUS_SUCCESS


def test_every_module_of_pipeline_has_a_layer() -> None:
    contracts = tomllib.loads(SETTINGS.read_text())["tool"]["importlinter"]["contracts"]
    [layers] = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    placed = {name for layer in layers for name in layer.replace("|", " ").replace(":", " ").split()}
    modules = {f"pipeline.{path.stem}" for path in (ROOT / "pipeline").iterdir() if is_module(path)}
    assert placed == modules | {"serving", "training"}


def test_every_package_is_installed() -> None:
    listed = tomllib.loads(SETTINGS.read_text())["tool"]["setuptools"]["packages"]
    folders = [
        path.parent for name in ("pipeline", "serving", "training") for path in (ROOT / name).rglob("__init__.py")
    ]
    assert sorted(listed) == sorted(".".join(folder.relative_to(ROOT).parts) for folder in folders)


def is_module(path: Path) -> bool:
    if path.is_dir():
        return (path / "__init__.py").is_file()
    return path.suffix == ".py" and path.stem != "__init__"
