"""`hotdraft adapters export`, `push` and `pull` move versions out of the registry and in, or say why not."""

import os
import shutil
import socket
import sys
from contextlib import suppress
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import yaml
from mlflow import MlflowClient
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from hotdraft.cli import app, main
from hotdraft.commands.adapters import pulled
from hotdraft.pipeline.config.settings import HotdraftConfig, load_config
from hotdraft.pipeline.models.adapter_folder import AdapterError
from hotdraft.pipeline.models.names import HubAwayError, ModelError
from hotdraft.pipeline.store.connection import experiment_id, open_client
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
    is_private = True

    class Hub:
        def create_repo(self, repo: str, *, private: bool, exist_ok: bool) -> str:
            done.append(("made", (repo, private, exist_ok)))
            return f"https://hub.test/{repo}"

        def model_info(self, repo: str) -> Any:
            return SimpleNamespace(private=is_private)

        def upload_folder(
            self, *, repo_id: str, folder_path: Path, commit_message: str, delete_patterns: list[str]
        ) -> None:
            assert "*.safetensors" in delete_patterns
            done.append(("filled", (repo_id, sorted(path.name for path in folder_path.iterdir()))))

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    told = invoke("push", "1", "-c", str(config), "--repo", "me/my-draft", "--format", "peft", "--private")
    assert "https://hub.test/me/my-draft" in told.output, told.output
    files = ["README.md", "adapter_config.json", "adapter_model.safetensors"]
    files += ["hotdraft_adapter.json", "probe.safetensors"]
    assert done == [("made", ("me/my-draft", True, True)), ("filled", ("me/my-draft", files))]
    is_private = False
    told = invoke("push", "1", "-c", str(config), "--repo", "me/my-draft", "--private")
    assert "is public" in str(told.exception)
    assert [what for what, _ in done] == ["made", "filled", "made"], (
        "nothing is written where everybody can read it"
    )


@pytest.mark.parametrize("listens", [False, True], ids=["is away", "hangs up"])
@pytest.mark.parametrize(
    ("words", "done"), [(("push", "1", "--repo", "me/my-draft"), "written"), (("pull", "me/my-draft"), "read")]
)
def test_a_hub_that_does_not_answer_is_one_line(
    listens: bool,
    words: tuple[str, ...],
    done: str,
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if listens:
            listener.listen()
            Thread(target=hang_up, args=[listener], daemon=True).start()
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setattr(sys, "argv", ["hotdraft", "adapters", *words, "-c", str(config)])
        monkeypatch.setattr(os, "umask", lambda mask: mask)  # it would stay for the tests to come
        with pytest.raises(SystemExit) as ended:
            main()
        if listens:
            listener.shutdown(socket.SHUT_RDWR)  # which ends the thread
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("hotdraft: ")]
    assert ended.value.code == 2
    assert len(said) == 1
    assert said[0].startswith(f"hotdraft: me/my-draft on the hub cannot be {done}: the hub does not answer: ")


def hang_up(listener: socket.socket) -> None:
    with suppress(OSError):
        while True:
            listener.accept()[0].close()


def test_an_upload_that_breaks_off_is_one_line(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks_off(*_: object, **__: object) -> None:
        raise RuntimeError("Error while uploading 'model.safetensors' to the Hub.")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", lambda *_, **__: "")
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", breaks_off)
    told = invoke("push", "1", "-c", str(config), "--repo", "me/my-draft")
    assert isinstance(told.exception, HubAwayError)


def test_what_was_pushed_is_pulled_as_a_version(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed = tmp_path / "abc123"
    assert invoke("export", "1", "-c", str(config), "--out", str(pushed), "--format", "peft").exit_code == 0
    asked: list[Any] = []
    monkeypatch.setattr(pulled, "snapshot_download", lambda repo, **told: asked.append((repo, told)) or str(pushed))
    told = invoke("pull", "me/my-draft", "-c", str(config), "--revision", "main")
    assert "me/my-draft is version 2 here" in told.output, told.output
    assert (asked[0][0], asked[0][1]["revision"]) == ("me/my-draft", "main")
    settings = load_config(config)
    version = AdapterRegistry(settings).version(2)
    assert (version.status, version.tags["origin"]) == ("candidate", "me/my-draft@abc123")
    assert open_client(settings).get_run(version.run_id).info.status == "FINISHED"
    assert invoke("promote", "2", "-c", str(config)).exit_code == 0
    assert AdapterRegistry(settings).champion() == 2


def test_a_pull_that_cannot_be_published_leaves_no_run_under_way(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    pushed = tmp_path / "abc123"
    assert invoke("export", "1", "-c", str(config), "--out", str(pushed), "--format", "peft").exit_code == 0
    monkeypatch.setattr(pulled, "snapshot_download", lambda *_, **__: str(pushed))
    monkeypatch.setattr(MlflowClient, "log_artifacts", is_full)
    told = invoke("pull", "me/my-draft", "-c", str(config))
    assert "No space left" in str(told.exception)
    settings = load_config(config)
    client = open_client(settings)
    [run] = client.search_runs([experiment_id(client, settings, settings.tracking.training_experiment)])
    assert run.info.status == "FAILED"


def test_nothing_of_another_draft_is_pulled(
    config: Path, tiny_neox_target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_adapter(tmp_path / "other", tiny_neox_target)
    monkeypatch.setattr(pulled, "snapshot_download", lambda *_, **__: str(other))
    told = invoke("pull", "me/other", "-c", str(config))
    assert isinstance(told.exception, AdapterError)
    assert "another base" in str(told.exception)
    assert len(AdapterRegistry(load_config(config)).versions()) == 1
