"""Two domains in a folder of their own."""

import json
from contextlib import contextmanager

import pytest

from hotdraft.commands.simulate import demo
from hotdraft.pipeline.config.section import ConfigError
from tests.unit.pipeline.simulation.fake_hotdraft import cli, fake_server


def test_a_folder_that_is_no_demos_is_left_where_it_is(tmp_path, config):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    result = cli(demo, "--out", tmp_path / "mine", "--config", config)
    assert result.exit_code == 2
    assert "is not empty: name a new folder" in " ".join(result.output.split())
    assert (tmp_path / "mine" / "thesis.tex").exists()


def test_demo_plays_two_domains_and_keeps_the_earlier_run(tmp_path, config, monkeypatch):
    monkeypatch.setenv("HOTDRAFT_TRACKING__URI", "http://where.servers.look:5000")
    out = tmp_path / "demo"
    out.mkdir()
    for name in ("mlflow.db", "traffic.jsonl"):
        (out / name).touch()
    with fake_server() as (url, bodies):

        @contextmanager
        def at_fake(given_config, log, overrides):
            assert (given_config, log) == (config, out / "server.log")
            assert overrides == {
                "run_dir": out,
                "replay": {"url": str(out / "replay")},
                "tracking": {"uri": f"sqlite:///{out / 'mlflow.db'}"},
            }
            yield url

        monkeypatch.setattr("hotdraft.pipeline.processes.local_server.local_server", at_fake)
        result = cli(demo, "--out", out, "--config", config, "--arithmetic-requests", 10, "--sql-requests", 30)
    assert result.exit_code == 0, result.output
    assert [body["metadata"]["domain"] for body in bodies].count("text_to_sql") == 30
    assert len((out / "traffic.jsonl").read_text().splitlines()) == 40
    assert not (out / "mlflow.db").exists()
    assert len(list(tmp_path.glob("demo-*/mlflow.db"))) == 1
    assert json.loads((out / "report.json").read_text())["swaps"] == 1


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--config", "absent.yaml"], ConfigError),
        (["--engine", "vlm"], ConfigError),
        (["--engin", "vllm"], SystemExit),
        (["--sql-requests", "0"], SystemExit),
    ],
)
def test_a_mistyped_demo_moves_nothing(tmp_path, config, words, fault):
    out = tmp_path / "demo"
    out.mkdir()
    (out / "traffic.jsonl").touch()
    result = cli(demo, "--config", config, "--out", out, *words)
    assert isinstance(result.exception, fault), result.output
    assert not list(tmp_path.glob("demo-*"))
    assert [path.name for path in out.iterdir()] == ["traffic.jsonl"]
