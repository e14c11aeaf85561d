"""The configurations that ship: valid, and fit for what their comments say."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hotdraft.cli import app
from hotdraft.pipeline.config.origins import explain
from hotdraft.pipeline.config.settings import load_config
from hotdraft.training.planning.machine import Available
from hotdraft.training.planning.memory_plan import MemoryPlan
from hotdraft.training.planning.plan_check import PlanError, check
from hotdraft.training.planning.plan_table import plan_predistill

CONFIGS = Path(__file__).parents[2] / "configs"
GPU = Available(80 * 10**9, None, "a GPU of 80 GB")
QWEN = {
    "model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584, "intermediate_size": 18944,
    "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False,
}  # fmt: skip
MODELS = {
    "Qwen2.5-7B": QWEN,
    "Qwen2.5-0.5B": QWEN | {
        "num_hidden_layers": 24, "hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14,
        "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
    },
    "Yi-1.5-6B": {
        "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 11008,
        "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 64000, "tie_word_embeddings": False,
    },
}  # fmt: skip


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_value_of_a_preset_has_its_origin(path: Path) -> None:
    assert "file" in {setting.origin.origin for setting in explain(path)}


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, str]:
    """Folders that hold configurations alone."""
    for name, config in MODELS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    return {name: str(tmp_path / name) for name in MODELS}


@pytest.fixture
def qwen(folders: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> MemoryPlan:
    monkeypatch.setenv("HOTDRAFT_TARGET", folders["Qwen2.5-7B"])
    monkeypatch.setenv("HOTDRAFT_PREDISTILL__DRAFT", folders["Qwen2.5-0.5B"])
    return plan_predistill(load_config(CONFIGS / "predistill-qwen2.5-7b.yaml"), elsewhere=True)


@pytest.fixture
def yi(folders: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> MemoryPlan:
    monkeypatch.setenv("HOTDRAFT_TARGET", folders["Yi-1.5-6B"])
    return plan_predistill(load_config(CONFIGS / "predistill-6b-to-1.5b.yaml"), elsewhere=True)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_configuration_is_valid(path):
    load_config(path)
    assert path.read_text().startswith("# ")


def test_qwen_has_the_parameters_that_are_known_of_it(qwen):
    assert qwen.run.target.num_parameters() == 7_615_616_512
    assert qwen.run.draft.num_parameters() == qwen.run.trainable == 494_032_768


def test_yi_is_cut_to_one_and_a_half_billion(yi):
    assert yi.run.target.num_parameters() == 6_061_035_520
    parameters = yi.run.draft.num_parameters()
    assert 1.4e9 < parameters < 1.6e9
    text = (CONFIGS / "predistill-6b-to-1.5b.yaml").read_text()
    assert f"{parameters / 1e9:.2f} B parameters" in text
    assert f"{yi.run.trainable / 1e9:.2f} B\n# train" in text


@pytest.mark.parametrize("preset", ["qwen", "yi"])
def test_the_preset_fits_a_gpu_of_80_gb_and_no_24(request, preset):
    plan = request.getfixturevalue(preset)
    check(plan, GPU)
    assert sum(plan.recording.values()) > 24e9  # it makes use of what it asks for
    with pytest.raises(PlanError):
        check(plan, Available(24 * 10**9, None, "a GPU of 24 GB"))


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["predistill-qwen2.5-7b", "predistill-6b-to-1.5b"])
def test_the_command_plans_without_a_gpu_or_weights(folders, preset, monkeypatch):
    monkeypatch.setenv("HOTDRAFT_TARGET", folders["Qwen2.5-7B" if "qwen" in preset else "Yi-1.5-6B"])
    if "qwen" in preset:
        monkeypatch.setenv("HOTDRAFT_PREDISTILL__DRAFT", folders["Qwen2.5-0.5B"])
    command = ["predistill", "--config", str(CONFIGS / f"{preset}.yaml"), "--plan"]
    told = CliRunner().invoke(app, [*command, "--memory-gb", "80"])
    assert told.exit_code == 0, told.output
    for part in ("Predicted cost ratio c = ", "AdamW state", "recorded answers", "Time: not measured"):
        assert part in told.output
    refused = CliRunner().invoke(app, [*command, "--memory-gb", "24"])
    assert isinstance(refused.exception, PlanError)
    assert "saves" in str(refused.exception)
