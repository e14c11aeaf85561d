"""What the documents name is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
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
