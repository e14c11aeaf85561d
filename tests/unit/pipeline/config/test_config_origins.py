import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hotdraft.cli import app
from hotdraft.pipeline.config.origins import Setting, explain
from hotdraft.pipeline.config.section import ConfigError
from hotdraft.pipeline.config.settings import HotdraftConfig, load_config
from hotdraft.pipeline.config.sources import Origin


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(
        "target: some/model\n"
        "engine: {k: 2, num_slots: 4}\n"
        "server: {port: 9000}\n"
        "experiment: {policies: {ours: {}, paper: {distill: {window_requests: 8}}}}\n"
    )
    return path


def by_key(settings: list[Setting]) -> dict[str, Setting]:
    return {setting.key: setting for setting in settings}


def test_each_value_has_the_origin_that_decided_it(config_file, monkeypatch):
    monkeypatch.setenv("HOTDRAFT_ENGINE__K", "5")
    monkeypatch.setenv("HOTDRAFT_ENGINE__MAX_K", "6")
    monkeypatch.setenv("HOTDRAFT_SERVER__PORT", "9001")
    found = by_key(explain(config_file, {"server": {"port": 9002}}))
    assert found["target"] == Setting("target", "some/model", Origin("file", f"{config_file}:1"))
    assert found["draft"] == Setting("draft", None, Origin("default"))
    assert found["engine.num_slots"] == Setting("engine.num_slots", 4, Origin("file", f"{config_file}:2"))
    assert found["engine.k"] == Setting("engine.k", 5, Origin("environment", "HOTDRAFT_ENGINE__K"))
    assert found["engine.max_k"] == Setting("engine.max_k", 6, Origin("environment", "HOTDRAFT_ENGINE__MAX_K"))
    assert found["server.port"] == Setting("server.port", 9002, Origin("flag"))
    assert found["server.host"] == Setting("server.host", "127.0.0.1", Origin("default"))
    assert found["experiment.policies.ours"].origin == Origin("file", f"{config_file}:4")
    assert found["experiment.policies.paper.distill.window_requests"].origin == Origin("file", f"{config_file}:4")


def test_a_variable_may_hold_a_section_or_be_written_small(config_file, monkeypatch):
    monkeypatch.setenv("HOTDRAFT_ENGINE", '{"k": 3, "max_k": 5}')
    monkeypatch.setenv("hotdraft_engine__k", "1")
    found = by_key(explain(config_file))
    assert found["engine.k"] == Setting("engine.k", 1, Origin("environment", "hotdraft_engine__k"))
    assert found["engine.max_k"] == Setting("engine.max_k", 5, Origin("environment", "HOTDRAFT_ENGINE"))
    assert found["engine.num_slots"].origin.origin == "file"


def test_the_values_are_those_that_a_command_gets(config_file, monkeypatch):
    monkeypatch.setenv("HOTDRAFT_DISTILL__BLENDS", "[0.5]")
    dumped = load_config(config_file).model_dump(mode="json")
    for setting in explain(config_file):
        value = dumped
        for key in setting.key.split("."):
            value = value[key]
        assert setting.value == value


def test_errors_are_those_of_every_command(config_file, monkeypatch):
    monkeypatch.setenv("HOTDRAFT_ENGINE__KK", "1")
    with pytest.raises(ConfigError, match=r"HOTDRAFT_ENGINE__KK: no such key .* did you mean HOTDRAFT_ENGINE__K"):
        explain(config_file)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:pass%20word@db:5432/mlflow", "postgresql://me:**********@db:5432/mlflow"),
        ("postgresql+psycopg2://:secret@db/mlflow", "postgresql+psycopg2://:**********@db/mlflow"),
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("sqlite:////a@b/c.db", "sqlite:////a@b/c.db"),
    ],
)
def test_passwords_in_addresses_are_masked(config_file, url, shown):
    assert by_key(explain(config_file, {"tracking": {"uri": url}}))["tracking.uri"].value == shown


def test_secrets_are_masked(config_file, monkeypatch):
    monkeypatch.setenv("HOTDRAFT_SERVER__API_KEYS", "secret-one,secret-two")
    found = by_key(explain(config_file))["server.api_keys"]
    assert found == Setting(
        "server.api_keys", ["**********"] * 2, Origin("environment", "HOTDRAFT_SERVER__API_KEYS")
    )


def test_show_prints_a_table_and_json(config_file, monkeypatch):
    monkeypatch.setenv("HOTDRAFT_CONFIG", str(config_file))
    monkeypatch.setenv("HOTDRAFT_ENGINE__K", "5")
    told = CliRunner().invoke(app, ["config", "show", "--port", "9003", "--json"])
    values = json.loads(told.stdout)
    assert values["engine.k"] == {"value": 5, "origin": "environment", "where": "HOTDRAFT_ENGINE__K"}
    assert values["server.port"] == {"value": 9003, "origin": "flag", "where": None}
    table = CliRunner().invoke(app, ["config", "show"], env={"COLUMNS": "80"})
    assert table.exit_code == 0
    rows = [line.split() for line in table.output.splitlines()]
    for row in (["engine"], ["k", "5", "HOTDRAFT_ENGINE__K"]):
        assert row in rows
    assert rows.index(["draft", "null", "default"]) < rows.index(["server"])


def test_the_schema_has_every_key_with_its_meaning():
    schema = json.loads(CliRunner().invoke(app, ["config", "schema"]).stdout)
    assert schema["properties"].keys() == HotdraftConfig.model_fields.keys()
    assert schema["required"] == ["target"]
    assert "hotdraft models fetch" in schema["properties"]["target"]["description"]
    assert schema["$defs"]["EngineConfig"]["additionalProperties"] is False


def test_what_is_changed_is_shown_alone(config_file):
    told = CliRunner().invoke(app, ["config", "show", "-c", str(config_file), "--changed", "--json"])
    assert set(json.loads(told.stdout)) == {
        "target", "engine.k", "engine.num_slots", "server.port", "experiment.policies.ours",
        "experiment.policies.paper.distill.window_requests",
    }  # fmt: skip


def test_every_key_is_described():
    schema = HotdraftConfig.model_json_schema()
    undescribed = [
        f"{section['title']}.{key}"
        for section in (schema, *schema["$defs"].values())
        for key, field in section["properties"].items()
        if "description" not in field and "$ref" not in field
    ]
    assert undescribed == []
