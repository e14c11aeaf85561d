from collections.abc import Iterator
from pathlib import Path

import pytest

from hotdraft.pipeline.config import EngineConfig, HotdraftConfig, RecorderConfig
from hotdraft.pipeline.replay import ReplayBuffer
from hotdraft.serving.app import build_engine
from hotdraft.serving.engine import Engine


@pytest.fixture
def config(tiny_target: str, tiny_draft: str, tmp_path: Path) -> HotdraftConfig:
    return HotdraftConfig(
        target=tiny_target,
        draft=tiny_draft,
        dtype="float32",
        device="cpu",
        run_dir=tmp_path,
        engine=EngineConfig(k=2, num_slots=3, max_model_len=128, max_queue=20, prefill_chunk=16, threads=1),
        recorder=RecorderConfig(top_k=8, flush_seconds=0.2),
    )


@pytest.fixture
def buffer(config: HotdraftConfig) -> ReplayBuffer:
    return ReplayBuffer(config.replay_url)


@pytest.fixture
def engine(config: HotdraftConfig, buffer: ReplayBuffer) -> Iterator[Engine]:
    engine = build_engine(config, buffer)
    engine.start()
    yield engine
    engine.stop()
    assert engine.recorder is not None
    engine.recorder.close()
