"""A trainer finds what the target's layers made of requests that were recorded, and need not ask the target."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from hotdraft.pipeline.config.learning import PredistillConfig
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.hidden_state_draft import HiddenStateDraft
from hotdraft.pipeline.models.loading import load_causal_lm
from hotdraft.pipeline.replay.buffer import ReplayBuffer, sample_from_row
from hotdraft.pipeline.system.array_ring import ArrayRing
from hotdraft.serving import service
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.engine.load import build_engine
from hotdraft.training.drafts.hidden_state_init import new_hidden_state_draft
from hotdraft.training.judging.served_draft import load_draft
from hotdraft.training.scoring.target_reader import TargetReader, give_target
from tests.models import save
from tests.unit.serving.clients import ask, request
from tests.unit.serving.updates.followed import eventually


@pytest.fixture
def reading(config: HotdraftConfig, tiny_target: str, tmp_path: Path) -> HotdraftConfig:
    draft = new_hidden_state_draft(load_causal_lm(tiny_target), PredistillConfig(hidden_states=[1, 2]))
    return config.model_copy(update={"draft": save(draft, tmp_path / "draft")})


def answer(engine: Engine) -> None:
    """More requests than there are slots, so that rows are moved; some begin alike, one ends by a stop string."""
    engine.start()
    prompts = [tuple(range(5, 40)), (1, 2), (*range(5, 30), 9, 8), (7,), tuple(range(60, 90))]
    lengths = range(6, 31, 5)
    clients = [
        ask(engine, request(f"r{length}", prompt, max_tokens=length))
        for prompt, length in zip(prompts, lengths, strict=True)
    ]
    for client in clients:
        client.wait()
    ask(engine, request("stopped", prompts[-1], max_tokens=30, stop=(clients[-1].text[2:4],))).wait()
    assert eventually(lambda: engine.is_idle)
    engine.stop()


def test_they_are_the_targets_own(
    reading: HotdraftConfig, buffer: ReplayBuffer, tiny_target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build_engine(reading, buffer)
    assert engine.recorder is not None
    cleared: list[int] = []
    monkeypatch.setattr(ArrayRing, "clear", lambda self: cleared.append(1))
    answer(engine)
    engine.recorder.close()
    assert cleared == [1], "nothing is left when the server has ended"
    samples = [sample_from_row(row) for row in buffer.load().with_format("numpy")]
    assert len(samples) == 6
    assert {len(sample.output_ids) for sample in samples} > {6, 11, 16, 21, 26}, "one ended before its time"
    again = load_causal_lm(str(reading.draft))
    assert isinstance(again, HiddenStateDraft)
    give_target(again, tiny_target)
    served = load_draft(str(reading.draft), reading).base
    monkeypatch.setattr(TargetReader, "_loaded", lambda self: pytest.fail("the target was asked"))
    found = {}
    for sample in samples:
        ids = torch.from_numpy(sample.read_tokens)[None]
        found[sample.request_id] = served.model.read_target(ids, [ids.shape[1]])
    monkeypatch.undo()
    for sample in samples:
        ids = torch.from_numpy(sample.read_tokens)[None]
        expected = again.model.read_target(ids, [ids.shape[1]])
        torch.testing.assert_close(found[sample.request_id].float(), expected.float(), atol=0.02, rtol=0.01)


def test_nothing_is_kept_where_nobody_reads_it(config: HotdraftConfig, buffer: ReplayBuffer) -> None:
    engine = build_engine(config, buffer)
    assert engine.recorder is not None
    answer(engine)
    engine.recorder.close()
    assert not (config.run_dir / "states").exists()


def test_what_a_killed_server_left_goes_whatever_the_next_one_keeps(
    config: HotdraftConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ArrayRing(config.run_dir / "states", 1000).put(b"prompt", np.arange(3))
    for name, done in {"configure_logging": lambda *_, **__: None, "build_engine": lambda *_: sys.exit(3)}.items():
        monkeypatch.setattr(service, name, done)
    monkeypatch.setattr(service.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit):
        service.serve(config, config_path=Path("c.yaml"), overrides={}, self_improve=False)
    assert not (config.run_dir / "states").exists()
