from pathlib import Path

import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.training.predistill.finished_draft import FinishedDraft, PredistillResult
from tests.models import tiny_llama

OUTCOME = PredistillResult({"all": {"prompts": 3, "overlap": 0.5}}, {"1-8": {"positions": 9}}, 1.2, "run1")


@pytest.fixture
def config(tmp_path: Path) -> HotdraftConfig:
    tiny_llama(1, seed=1).save_pretrained(tmp_path / "target")
    return HotdraftConfig(target=str(tmp_path / "target"), dtype="float32", device="cpu", run_dir=tmp_path / "run")


def test_only_the_same_command_finds_its_draft(tmp_path, config):
    out, other = tmp_path / "draft", tmp_path / "other"
    finished = FinishedDraft(config, out, slim=False)
    assert finished.read() is None
    finished.write(OUTCOME)
    assert finished.read() is None, "the folder never appeared"
    for folder in (out, other):
        folder.mkdir()
        (folder / "config.json").touch()
    assert FinishedDraft(config, out, slim=False).read() == OUTCOME

    assert FinishedDraft(config, out, slim=True).read() is None
    assert FinishedDraft(config, other, slim=False).read() is None
    changed = config.model_copy(update={"predistill": config.predistill.model_copy(update={"max_steps": 7})})
    assert FinishedDraft(changed, out, slim=False).read() is None
    tiny_llama(1, seed=5).save_pretrained(config.target)
    assert FinishedDraft(config, out, slim=False).read() is None

    finished.forget()
    assert finished.read() is None
