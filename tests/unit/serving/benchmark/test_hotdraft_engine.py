"""What a benchmark of hotdraft itself leaves behind: nothing."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.serving.benchmark.engines import hotdraft_engine
from hotdraft.serving.benchmark.engines.engine import EngineSettings


def test_what_is_recorded_for_its_cost_is_not_among_a_servers_traffic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[HotdraftConfig] = []

    def build(config: HotdraftConfig, buffer: ReplayBuffer | None) -> SimpleNamespace:
        assert buffer is not None
        return SimpleNamespace(computations={}, start=lambda: None)

    monkeypatch.setattr(hotdraft_engine, "build_engine", build)
    monkeypatch.setattr(hotdraft_engine, "_serving_listeners", lambda engine, config: told.append(config) or [])
    file, live = tmp_path / "config.yaml", tmp_path / "live"
    file.write_text(f"target: t\nreplay: {{url: {live}}}\ntracking: {{uri: http://mlflow:5000}}\n")
    settings = EngineSettings(tmp_path, None, "float32", 1, tmp_path, config_file=file, recording=True)
    hotdraft_engine.HotdraftEngine(settings)
    assert not live.exists()
    [config] = told
    assert not config.has_remote_store
