import json
from pathlib import Path

import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.store.connection import experiment_id, open_client
from hotdraft.training.planning.machine import checkpoints_of
from hotdraft.training.predistill.finished_draft import FinishedDraft, PredistillResult, recipe
from hotdraft.training.predistill.make import EXPERIMENT, conclude
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


def test_what_was_killed_while_it_told_mlflow_tells_no_figure_twice(tmp_path, config):
    client = open_client(config)
    run_id = client.create_run(experiment_id(client, config, EXPERIMENT)).info.run_id
    rates = {"greedy_agreement": 0.5, "overlap": 0.5}
    outcome = PredistillResult({"all": {"prompts": 3, **rates}}, {"1-8": {"positions": 9, **rates}}, 1.2, run_id)
    for _ in range(2):
        checkpoints_of(config).mkdir(parents=True)
        conclude(config, outcome)
    for table in ("figures_by_domain.json", "figures_by_position.json"):
        logged = json.loads(Path(client.download_artifacts(run_id, table, tmp_path)).read_text())
        assert len(logged["data"]) == 1


def test_a_recipe_names_what_is_held_out_the_targets_weights_and_what_the_draft_begins_as(tmp_path, config):
    def told(**sections):
        return recipe(HotdraftConfig(target=config.target, dtype="float32", device="cpu", **sections))

    assert told() == told(run_dir=tmp_path / "elsewhere")
    assert told() != told(replay={"held_out_fraction": 0.5})
    assert told() != told(engine={"target_weights": "int8"})
    begun = tmp_path / "begun"
    tiny_llama(1, seed=2).save_pretrained(begun)
    before = told(predistill={"draft": str(begun)})
    assert before != told()
    tiny_llama(1, seed=3).save_pretrained(begun)
    assert told(predistill={"draft": str(begun)}) != before
