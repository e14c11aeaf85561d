from types import SimpleNamespace

import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.training.experiment.ceiling import ceiling
from hotdraft.training.judging.gate import refused
from hotdraft.training.online.context import JobError


def test_a_long_job_that_is_refused_is_no_ceiling(make_llama, serve, tmp_path, monkeypatch):
    """The draft as it was would be told for what could be reached at all."""
    target = make_llama(1, layers=1)
    target.save_pretrained(tmp_path / "draft")
    config = HotdraftConfig(
        target="unused", draft=str(tmp_path / "draft"), dtype="float32", device="cpu", run_dir=tmp_path / "run"
    )
    of_job = SimpleNamespace(promoted=False, verdict=refused("the loss is nan at step 3"))
    monkeypatch.setattr("hotdraft.training.experiment.ceiling.run_job", lambda *_, **__: of_job)
    with pytest.raises(JobError, match="came to nothing: the loss is nan at step 3"):
        ceiling(config, serve(target, 4), serve(target, 2, prefix="p", seed=1))
