import re
from pathlib import Path

import pytest

from hotdraft.pipeline.config.section import ConfigError
from hotdraft.pipeline.config.settings import load_config


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text("target: some/model\nengine:\n  k: 2\n  num_slots: 4\n")
    return path


def test_file_lies_over_defaults(config_file):
    config = load_config(config_file)
    assert (config.engine.k, config.engine.num_slots, config.engine.max_model_len) == (2, 4, 1024)


def test_environment_lies_over_file_and_leaves_its_neighbours(config_file, monkeypatch):
    monkeypatch.setenv("HOTDRAFT_ENGINE__K", "5")
    config = load_config(config_file)
    assert (config.engine.k, config.engine.num_slots) == (5, 4)


def test_flags_lie_over_environment_and_leave_their_neighbours(config_file, monkeypatch):
    monkeypatch.setenv("HOTDRAFT_ENGINE__K", "5")
    monkeypatch.setenv("HOTDRAFT_ENGINE__NUM_SLOTS", "6")
    config = load_config(config_file, {"engine": {"k": 0}})
    assert (config.engine.k, config.engine.num_slots) == (0, 6)


@pytest.mark.parametrize(
    ("target", "run_dir"),
    [("org/model", "runs/model"), ("models/m/", "runs/m"), (".", "runs/pair"), ("..", "runs/up")],
)
def test_the_run_folder_has_the_name_of_the_target(tmp_path, monkeypatch, target, run_dir):
    (tmp_path / "up" / "pair").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "up" / "pair")
    assert load_config(None, {"target": target}).run_dir == Path(run_dir)


def test_without_a_file_environment_and_flags_are_all_there_is(monkeypatch):
    monkeypatch.setenv("HOTDRAFT_ENGINE__K", "5")
    config = load_config(None, {"target": "org/model"})
    assert (config.target, config.engine.k, config.engine.num_slots) == ("org/model", 5, 8)


def test_stores_live_in_the_run_folder_by_default(config_file, tmp_path):
    config = load_config(config_file, {"run_dir": tmp_path / "run"})
    assert config.replay_url == str(tmp_path / "run" / "replay")
    assert config.tracking_uri == f"sqlite:///{tmp_path / 'run' / 'mlflow.db'}"
    assert config.artifact_root == str(tmp_path / "run" / "mlartifacts")


def test_what_is_apart_has_none_of_its_stores_elsewhere(config_file, tmp_path, monkeypatch):
    monkeypatch.setenv("HOTDRAFT_REPLAY__URL", "s3://live/replay")
    monkeypatch.setenv("HOTDRAFT_TRACKING__URI", "http://mlflow:5000")
    config = load_config(config_file).apart(tmp_path)
    assert config.replay_url == str(tmp_path / "replay")
    assert config.tracking_uri == f"sqlite:///{tmp_path / 'mlflow.db'}"


def test_a_run_folder_at_home_is_one_place(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    config = load_config(None, {"target": "m", "run_dir": "~/run"})
    assert config.run_dir == tmp_path / "run"
    assert config.replay_url == str(tmp_path / "run" / "replay")
    assert config.tracking_uri == f"sqlite:///{tmp_path / 'run' / 'mlflow.db'}"


@pytest.mark.parametrize(
    ("run_dir", "says"),
    [
        ("a%20b", "without %20, which"),
        ("a/q?mode=ro", r"without \?, which"),
        ("a::b", "without ::, which"),
        ("m\udcfcller", "whose name is text in this locale"),
        ("s3://bucket/run", r"must be a local folder; replay\.url"),
    ],
)
def test_a_run_folder_that_its_stores_would_not_agree_on(run_dir, says):
    with pytest.raises(ConfigError, match=rf"by flag: run_dir: .*{says}"):
        load_config(None, {"target": "m", "run_dir": run_dir})
    with pytest.raises(ConfigError, match=r"run_dir: .*without %41"):
        load_config(None, {"target": "models/%41"})


def test_run_folders_of_other_odd_names_are_as_good_as_any(tmp_path):
    for name in ["per%", "a b", "h#x;&", "-dash", "ünï∑", "c:d"]:
        assert load_config(None, {"target": "m", "run_dir": name}).run_dir == Path(name)


@pytest.mark.parametrize("key", ["API_KEYS", "ADMIN_KEYS", "ALLOWED_HOSTS"])
@pytest.mark.parametrize("value", ["", " ", ",", " , "])
def test_an_empty_variable_takes_no_keys_away(config_file, monkeypatch, key, value):
    config_file.write_text(f"target: m\nserver: {{{key.lower()}: [one]}}\n")
    monkeypatch.setenv(f"HOTDRAFT_SERVER__{key}", value)
    with pytest.raises(ConfigError, match=rf"server\.{key.lower()}: .*holds an empty text; to have none, leave"):
        load_config(config_file)


@pytest.mark.parametrize("key", ["server.api_key_file", "server.admin_key_file", "run_dir"])
@pytest.mark.parametrize("value", ["", " "])
def test_an_empty_variable_is_no_path(config_file, monkeypatch, key, value):
    monkeypatch.setenv(f"HOTDRAFT_{key.replace('.', '__').upper()}", value)
    with pytest.raises(ConfigError, match=rf"{re.escape(key)}: must be a path"):
        load_config(config_file)


@pytest.mark.parametrize("keys", ['[""]', '[a, " "]', '" "'])
def test_a_key_is_not_empty(config_file, keys):
    config_file.write_text(f"target: m\nserver: {{api_keys: {keys}}}\n")
    with pytest.raises(ConfigError, match=r"server\.api_keys: .*holds an empty text"):
        load_config(config_file)


def test_keys_lose_the_space_around_them(config_file, monkeypatch):
    config_file.write_text('target: m\nserver: {api_keys: [" one ", "two\\n"]}\n')
    assert [key.get_secret_value() for key in load_config(config_file).server.api_keys] == ["one", "two"]
    monkeypatch.setenv("HOTDRAFT_SERVER__API_KEYS", " three , four,")
    assert [key.get_secret_value() for key in load_config(config_file).server.api_keys] == ["three", "four"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("target: m\nengin:\n  k: 2\n", "engin"),
        ("target: m\nengine:\n  kk: 2\n", "engine.kk"),
        ("target: m\nengine:\n  k: -1\n", "engine.k"),
        ("target: m\nengine:\n  k: many\n", "engine.k"),
        ("target: m\ndistill:\n  quantization: int3\n", "distill.quantization"),
        ("engine:\n  k: 2\n", "target: missing"),
        ("target: [m\n", "not valid YAML"),
        ("just a sentence\n", "config.yaml"),
        ("- a\n- list\n", "config.yaml"),
        ("", "target: missing"),
    ],
)
def test_bad_file_is_a_clear_error(tmp_path, text, named):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=named) as raised:
        load_config(path)
    assert str(path) in str(raised.value)


def test_missing_file_is_a_clear_error(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.yaml"):
        load_config(tmp_path / "absent.yaml")


def test_what_kubernetes_sets_for_a_service_of_our_name_is_no_mistake(config_file, monkeypatch):
    for name, value in {
        "HOTDRAFT_PORT": "tcp://10.0.0.1:8000",
        "HOTDRAFT_SERVICE_HOST": "10.0.0.1",
        "HOTDRAFT_SERVER_SERVICE_PORT_HTTP": "8000",
        "HOTDRAFT_PORT_8000_TCP_ADDR": "10.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    load_config(config_file)
    monkeypatch.setenv("HOTDRAFT_SERVER_PORT", "9000")
    with pytest.raises(ConfigError, match="HOTDRAFT_SERVER_PORT: no such key"):
        load_config(config_file)


def test_bad_environment_is_a_clear_error(config_file, monkeypatch):
    monkeypatch.setenv("HOTDRAFT_ENGINE__K", "99")
    with pytest.raises(ConfigError, match=r"engine\.k.*less than or equal to 16"):
        load_config(config_file)


def test_bad_flag_is_a_clear_error(config_file):
    with pytest.raises(ConfigError, match=r"server\.port"):
        load_config(config_file, {"server": {"port": 70000}})
