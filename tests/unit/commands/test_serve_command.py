"""What `hotdraft serve` keeps of its flags."""

import os
import resource
from pathlib import Path

import pytest

from hotdraft.commands.serve import _write_flags


def test_the_same_flags_are_kept_on_a_full_disk_and_others_take_nothing_away(tmp_path: Path) -> None:
    path = _write_flags(tmp_path, {"target": "one"})
    kept = path.read_text()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        assert _write_flags(tmp_path, {"target": "one"}) == path
        with pytest.raises(OSError, match="File too large"):
            _write_flags(tmp_path, {"target": "other"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == kept
    assert os.listdir(tmp_path) == [path.name]
