from pathlib import Path

import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig, TrackingConfig
from tests.unit.pipeline.store.fake_client import FakeClient
from tests.unit.pipeline.store.publisher import Publisher


@pytest.fixture
def publisher(store_config: HotdraftConfig, tmp_path: Path) -> Publisher:
    return Publisher(store_config, tmp_path / "adapter")


@pytest.fixture
def fake() -> FakeClient:
    return FakeClient()


@pytest.fixture
def config(tmp_path) -> HotdraftConfig:
    return HotdraftConfig(target="tiny", run_dir=tmp_path, tracking=TrackingConfig(interval_seconds=0.02))
