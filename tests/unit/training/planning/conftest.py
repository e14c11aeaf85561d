import json
from pathlib import Path

import pytest

from tests.unit.training.planning.plans import YI_6B


@pytest.fixture
def target(tmp_path: Path) -> str:
    """A folder that holds a configuration and no weights."""
    folder = tmp_path / "yi"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(YI_6B))
    return str(folder)
