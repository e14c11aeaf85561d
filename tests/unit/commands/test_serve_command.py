"""What `hotdraft serve` makes of its flags, and keeps of them."""

import os
import resource
from pathlib import Path

import pytest

from hotdraft.commands.serve import _shared_cores, _write_flags


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


@pytest.mark.parametrize(
    ("cores", "serving", "training", "shared"),
    [
        (8, None, None, (4, 4)),
        (8, None, 2, (6, 2)),
        (8, 7, None, (7, 1)),
        (8, None, 8, (2, 8)),
        (8, 8, None, (8, 1)),
        (8, 3, 3, (3, 3)),
        (2, None, None, (2, 1)),
        (2, 1, None, (1, 1)),
        (1, None, None, (1, 1)),
    ],
)
def test_a_server_that_improves_itself_shares_its_cores_with_the_trainer_as_far_as_nobody_said_otherwise(
    cores: int, serving: int | None, training: int | None, shared: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert _shared_cores(serving, training) == {"engine": {"threads": shared[0]}, "distill": {"threads": shared[1]}}
