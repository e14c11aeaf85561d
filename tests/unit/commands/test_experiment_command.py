"""An experiment that is stopped says so in a line."""

from pathlib import Path

import pytest
import typer

from hotdraft.commands import experiment as command
from hotdraft.training.fit.resume import JobInterruptedError


def test_one_that_was_asked_to_stop_ends_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object) -> None:
        raise JobInterruptedError("the job got SIGTERM")

    monkeypatch.setattr("hotdraft.answering.experiment_answers.answers_of", lambda *_: None)
    monkeypatch.setattr("hotdraft.answering.round_cost.round_seconds", lambda _: {})
    monkeypatch.setattr(command, "_play", stopped)
    with pytest.raises(typer.Exit):
        command.experiment(Path("experiment-shift"), tmp_path, requests=2)
    assert capsys.readouterr().err == "hotdraft: the job got SIGTERM; the same command plays what is not finished\n"
