"""`hotdraft adapters export` and `push` take a version out of the registry, or say in one line why not."""

import shutil
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
import yaml
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from hotdraft.cli import app
from hotdraft.pipeline.config.settings import HotdraftConfig, load_config
from hotdraft.pipeline.models.names import ModelError
from hotdraft.pipeline.store.connection import open_client
from hotdraft.pipeline.store.registry import AdapterRegistry
from tests.integration.adapters import write_adapter


@pytest.fixture
def config(tiny_target: str, tiny_draft: str, tmp_path: Path, empty_mlflow_db: Path) -> Path:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    shutil.copy(empty_mlflow_db, run_dir / "mlflow.db")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"target": tiny_target, "draft": tiny_draft, "run_dir": str(run_dir)}))
    settings: HotdraftConfig = load_config(path)
    run_id = open_client(settings).create_run("0").info.run_id
    AdapterRegistry(settings).publish(write_adapter(tmp_path / "a", tiny_draft), run_id=run_id, tags={})
    return path


def invoke(*words: str) -> Any:
    return CliRunner().invoke(app, ["adapters", *words])


def test_a_version_is_written_to_a_folder(config: Path, tmp_path: Path) -> None:
    told = invoke("export", "1", "-c", str(config), "--out", str(tmp_path / "out"))
    assert (told.exit_code, "version 1 is in" in told.output) == (0, True), told.output
    AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    again = invoke("export", "1", "-c", str(config), "--out", str(tmp_path / "out"))
    assert isinstance(again.exception, ModelError)
    assert "not empty" in str(again.exception)


def test_a_version_is_put_on_the_hub(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, Any]] = []

    class Hub:
        def create_repo(self, repo: str, *, private: bool, exist_ok: bool) -> str:
            done.append(("made", (repo, private, exist_ok)))
            return f"https://hub.test/{repo}"

        def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> None:
            done.append(("filled", (repo_id, sorted(path.name for path in folder_path.iterdir()))))

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    told = invoke("push", "1", "-c", str(config), "--repo", "me/my-draft", "--format", "peft", "--private")
    assert "https://hub.test/me/my-draft" in told.output, told.output
    files = ["README.md", "adapter_config.json", "adapter_model.safetensors"]
    assert done == [("made", ("me/my-draft", True, True)), ("filled", ("me/my-draft", files))]


def test_a_hub_that_cannot_be_written_is_one_line(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise httpx.ConnectError("[Errno -2] Name or service not known")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", away)
    told = invoke("push", "1", "-c", str(config), "--repo", "me/my-draft")
    assert isinstance(told.exception, ModelError)
    assert str(told.exception).count("\n") == 0
    assert "me/my-draft on the hub cannot be written" in str(told.exception)
