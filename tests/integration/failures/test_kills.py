"""`kill -9` of server and trainer at random moments, twenty times; `bench_kills` has more."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scenarios.kills import kill_at_random

KILLS = 20


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_twenty_kills_lose_nothing_and_leave_nothing_half_done(
    write_config: Callable[..., Path], tmp_path: Path
) -> None:
    trigger = {"min_new_requests": 16, "min_new_rejected": 30, "poll_seconds": 0.2}
    toll = kill_at_random(write_config(tmp_path, distill={"max_steps": 10, "trigger": trigger}), KILLS, seed=0)
    assert toll.kills.total() >= KILLS
    assert len(toll.kills) >= 4
    assert toll.samples > KILLS
    assert toll.versions >= 1
    assert (toll.lost_samples, toll.set_aside, toll.half_published, toll.champion_not_served) == (0, 0, 0, 0)
