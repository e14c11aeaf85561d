"""Small files that must never be half written."""

import json
from collections.abc import Mapping
from pathlib import Path


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write `content`, which appears as a whole, in a folder that is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    temporary.replace(path)
