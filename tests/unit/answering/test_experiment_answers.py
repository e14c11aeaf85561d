"""Where the answers to an experiment's streams are kept."""

from pathlib import Path

import pytest

from hotdraft.answering import experiment_answers
from hotdraft.answering.experiment_answers import answers_of
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.replay.buffer import ReplayBuffer


def test_answers_are_recorded_beside_the_results_and_not_among_traffic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffers: list[ReplayBuffer] = []
    monkeypatch.setattr(experiment_answers, "collect", lambda _, __, buffer, *___: buffers.append(buffer))
    monkeypatch.setattr(experiment_answers, "fingerprint", str)
    config = HotdraftConfig(target="t", draft="d", replay={"url": str(tmp_path / "live")})
    answers_of(config, tmp_path / "answers", [])
    assert [path.name for path in tmp_path.iterdir()] == ["answers"]
    assert buffers
