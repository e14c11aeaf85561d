from collections.abc import Iterator
from pathlib import Path

import pytest

from hotdraft.pipeline.config.serving import EngineConfig, RecorderConfig
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.engine.load import build_engine


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
