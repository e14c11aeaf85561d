"""A pre-distillation that cannot go on says so in a line, and has its run folder to itself."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from mlflow.exceptions import MlflowException

from hotdraft.answering.batch import CollectError
from hotdraft.commands import predistill as command
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.store.connection import StoreError
from hotdraft.pipeline.system.run_lock import RunInUseError, run_lock
from hotdraft.pipeline.traffic.prompts import ask
from hotdraft.training.fit.resume import JobInterruptedError


def make(run_dir: Path, monkeypatch: pytest.MonkeyPatch, outcome: Exception) -> None:
    def raises(*_: object, **__: object) -> None:
        raise outcome

    monkeypatch.setattr(command, "_make", raises)
    planned: Any = SimpleNamespace(run=SimpleNamespace(config=HotdraftConfig(target="t", run_dir=run_dir)))
    command._make_alone(planned, None, [], run_dir / "out", slim=False)


def test_one_that_was_asked_to_stop_ends_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit):
        make(tmp_path, monkeypatch, JobInterruptedError("the job got SIGTERM"))
    assert "the job got SIGTERM; the same command goes on from its last checkpoint" in capsys.readouterr().err


def test_a_store_that_is_away_is_told_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match="cannot be used: no route"):
        make(tmp_path, monkeypatch, MlflowException("no route"))


def test_too_few_prompts_end_it_before_a_step_is_tried(
    tmp_path: Path, tiny_target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tried(*_: object) -> None:
        raise AssertionError("a step is tried")

    monkeypatch.setattr(command, "_try_step", tried)
    planned: Any = SimpleNamespace(run=SimpleNamespace(config=HotdraftConfig(target=tiny_target, run_dir=tmp_path)))
    with pytest.raises(CollectError, match=r"too few: .* give more by --prompts"):
        command._make(planned, None, [ask("one", "Say one.")], tmp_path / "out", slim=False)


def test_two_do_not_work_in_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_lock(tmp_path, "trainer"), pytest.raises(RunInUseError):
        make(tmp_path, monkeypatch, AssertionError("began"))


def test_it_does_not_record_among_a_servers_traffic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_lock(tmp_path, "server"):
        pass
    with pytest.raises(RunInUseError, match="a run_dir of its own"):
        make(tmp_path, monkeypatch, AssertionError("began"))


def test_nor_where_the_configuration_has_a_server_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def tell(settings: HotdraftConfig, **_: object) -> None:
        told.append(settings.replay_url)
        raise typer.Exit

    monkeypatch.setenv("HOTDRAFT_REPLAY__URL", "s3://live/replay")
    monkeypatch.setattr("hotdraft.training.planning.plan_table.plan_predistill", tell)
    file = tmp_path / "config.yaml"
    file.write_text(f"target: t\nrun_dir: {tmp_path}\npredistill: {{builtin_prompts: 0}}\n")
    with pytest.raises(typer.Exit):
        command.predistill(file, plan=True)
    assert told == [str(tmp_path / "replay")]
