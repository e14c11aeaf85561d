"""What the documents name is there."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hotdraft.pipeline.config.reference import reference

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
PATH = re.compile(r"`((?:hotdraft|tests|configs|deploy|dags|docs)/[\w./-]+)`")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    targets = LINK.findall(document.read_text())
    assert [target for target in targets if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_are_named_are_there(document: Path) -> None:
    named = PATH.findall(document.read_text())
    missing = [path for path in named if not (ROOT / path).exists()]
    assert [path for path in missing if not (ROOT / f"{path}.example").exists()] == []  # made from it by the reader


def test_every_room_is_in_the_structure() -> None:
    structure = (ROOT / "docs" / "structure.md").read_text()
    for package in ("serving", "training", "pipeline"):
        rooms = [path.name for path in (ROOT / "hotdraft" / package).iterdir() if (path / "__init__.py").is_file()]
        assert [room for room in rooms if f"`{room}/`" not in structure] == []


def test_the_reference_of_the_configuration_is_as_the_command_writes_it() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text() == reference()


def test_the_site_builds_without_a_warning_and_has_every_page(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    build = [Path(sys.executable).with_name("zensical"), "build", "--clean", "--strict"]
    told = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True)
    assert (told.returncode, "No issues found" in told.stdout + told.stderr) == (0, True), told.stdout + told.stderr
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    settings, index = (tmp_path / "zensical.toml").read_text(), (ROOT / "docs" / "llms.txt").read_text()
    assert [str(page) for page in pages if f'"{page}"' not in settings or f"({page})" not in index] == []
