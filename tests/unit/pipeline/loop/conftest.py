from pathlib import Path

import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from tests.unit.pipeline.loop.recorded import FRACTION


@pytest.fixture
def config(tmp_path):
    return HotdraftConfig(
        target="t",
        run_dir=tmp_path,
        replay={"held_out_fraction": FRACTION},
        gate={"min_requests": 2},
        distill={"trigger": {"min_new_requests": 10, "min_new_rejected": 30}},
    )


@pytest.fixture
def buffer(config):
    return ReplayBuffer(config.replay_url)


@pytest.fixture
def records(tmp_path: Path) -> JobRecords:
    return JobRecords(tmp_path)
