"""What a server says of itself once it listens."""

from pathlib import Path

import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.controls import Controls
from hotdraft.serving.http.banner import banner


def said(controls: Controls, draft: str | None = None) -> str:
    config = HotdraftConfig(target="t", draft=draft, run_dir=Path("runs/t"))
    return banner(config, Path("my.yaml"), controls=controls, port=8000, trainer_log=None, computations={})


def test_a_server_without_a_draft_names_the_command_with_a_run_folder_of_its_own() -> None:
    says = said(Controls())
    assert "`HOTDRAFT_RUN_DIR=runs/t/predistill hotdraft predistill --config my.yaml --out runs/t/draft`" in says


def test_what_an_operator_changed_before_the_start_is_told() -> None:
    assert "d, k auto\n" in said(Controls(), "d")
    changed = said(Controls(loop_enabled=False, k=2), "d")
    assert "d, k 2 by `hotdraft k`, not auto\n" in changed
    assert "off: no job begins by itself until `hotdraft loop on --config my.yaml`" in changed


def test_commands_that_it_names_may_be_pasted_where_a_folder_has_a_space_in_its_name() -> None:
    config = HotdraftConfig(target="t", run_dir=Path("my runs"))
    says = banner(
        config, Path("my settings.yaml"), controls=Controls(), port=8000, trainer_log=None, computations={}
    )
    assert "predistill --config 'my settings.yaml' --out 'my runs/draft'`" in says
    assert "`HOTDRAFT_RUN_DIR='my runs/predistill' hotdraft" in says
    assert "`hotdraft doctor --config 'my settings.yaml'`" in says


def test_commands_that_it_names_look_where_the_environment_put_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTDRAFT_RUN_DIR", "runs/t")
    says = said(Controls(loop_enabled=False), "d")
    for command in ("distill --config my.yaml --follow", "loop on --config my.yaml", "doctor --config my.yaml"):
        assert f"`HOTDRAFT_RUN_DIR=runs/t hotdraft {command}`" in says
