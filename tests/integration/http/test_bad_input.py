"""Whatever is wrong is named, and service goes on."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from safetensors.torch import load_file, save_file

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.adapter_folder import WEIGHTS_FILE, read_card, write_card
from hotdraft.pipeline.store.connection import experiment_id, open_client
from hotdraft.pipeline.store.registry import AdapterRegistry
from tests.integration.adapters import write_adapter
from tests.integration.processes import Server, Trickle, wait_for
from tests.integration.warm.start import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def config_path(write_config: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("bad"))


@pytest.fixture(scope="module")
def server(config_path: Path) -> Iterator[Server]:
    server = Server(config_path, config_path.with_name("server.log"))
    yield server
    assert server.stop() == 0, server.words()


@pytest.mark.parametrize(
    ("changes", "status", "param", "code", "told"),
    [
        ({"model": "gpt-5"}, 404, "model", "model_not_found", "`gpt-5` does not exist"),
        ({"messages": []}, 400, "messages", None, "messages"),
        ({"max_tokens": -1}, 400, "max_tokens", None, "greater than or equal to 1"),
        (
            {"messages": [{"role": "user", "content": "x" * 300}]},
            400,
            "messages",
            "context_length_exceeded",
            "maximum context length is 256 tokens",
        ),
        ({"max_tokens": 255}, 400, "messages", "context_length_exceeded", "maximum context length is 256 tokens"),
        ({"temperature": "hot"}, 400, "temperature", None, "temperature"),
    ],
    ids=["model", "messages", "max_tokens", "long prompt", "long answer", "temperature"],
)
def test_a_bad_request_is_refused_in_openai_s_shape(
    server: Server, changes: dict[str, Any], status: int, param: str, code: str | None, told: str
) -> None:
    with pytest.raises(openai.APIStatusError) as raised:
        server.ask(0, **changes)
    error = raised.value
    assert error.status_code == status
    assert isinstance(error.body, dict)
    assert error.body.keys() == {"message", "type", "param", "code"}
    assert (error.body["type"], error.body["param"], error.body["code"]) == ("invalid_request_error", param, code)
    assert told in error.body["message"]
    assert server.ask(1).drafted > 0


def test_a_body_that_is_not_json_is_refused(server: Server) -> None:
    answer = httpx.post(
        f"{server.url}/v1/completions",
        content=b'{"model": ',
        headers={"Content-Type": "application/json"},
        timeout=30.0,
    )
    assert answer.status_code == 400
    assert "not valid JSON" in answer.json()["error"]["message"]


Spoil = Callable[[Path, str], None]


def of_another_base(folder: Path, draft: str) -> None:
    card = read_card(folder)
    write_card(folder, type(card)(**{**vars(card), "base_fingerprint": "0" * 64}))


def with_a_nan(folder: Path, draft: str) -> None:
    weights = load_file(folder / WEIGHTS_FILE)
    name = min(weights)
    weights[name].view(-1)[3] = torch.nan
    save_file(weights, folder / WEIGHTS_FILE)


def without_a_key(folder: Path, draft: str) -> None:
    weights = load_file(folder / WEIGHTS_FILE)
    del weights[min(weights)]
    save_file(weights, folder / WEIGHTS_FILE)


def with_other_weights_than_trained(folder: Path, draft: str) -> None:
    weights = load_file(folder / WEIGHTS_FILE)
    save_file({name: 20 * tensor for name, tensor in weights.items()}, folder / WEIGHTS_FILE)


@pytest.fixture(scope="module")
def publish(config: HotdraftConfig, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Spoil | None], int]:
    """Publishes an adapter, spoiled or not, as a trainer would; gives its version."""
    assert config.draft is not None
    draft = config.draft
    client = open_client(config)
    run_id = client.create_run(experiment_id(client, config, config.tracking.training_experiment)).info.run_id

    def publish(spoil: Spoil | None) -> int:
        folder = write_adapter(tmp_path_factory.mktemp("adapter") / "adapter", draft)
        if spoil is not None:
            spoil(folder, draft)
        return AdapterRegistry(config).publish(folder, run_id=run_id, tags={"parent": "0"})

    return publish


@pytest.fixture(scope="module")
def good(server: Server, config: HotdraftConfig, publish: Callable[[Spoil | None], int]) -> int:
    """An adapter's version that serves."""
    version = publish(None)
    AdapterRegistry(config).promote(version, reason="test")
    wait_for("the good version", lambda: server.draft_version == version)
    return version


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (of_another_base, "trained on another base: 000000000000"),
        (with_a_nan, "lora_A has values that are not finite"),
        (without_a_key, f"{WEIGHTS_FILE} misses 1 keys"),
        (with_other_weights_than_trained, "from what the adapter's trainer computed"),
    ],
)
def test_a_bad_adapter_made_champion_never_serves(
    server: Server,
    config: HotdraftConfig,
    publish: Callable[[Spoil | None], int],
    good: int,
    spoil: Spoil,
    told: str,
) -> None:
    registry = AdapterRegistry(config)
    with Trickle(server, first=10) as trickle:
        bad = publish(spoil)
        registry.promote(bad, reason="forced")
        wait_for("the refusal", lambda: str(bad) in unusable(server))
        asked = len(trickle.answers)
        wait_for("an answer since", lambda: len(trickle.answers) > asked + 1)
    assert not trickle.failures
    assert {answer.draft_version for answer in trickle.answers} == {good}
    assert told in unusable(server)[str(bad)]
    assert told in server.log.read_text()
    assert registry.champion() == bad, "what one server cannot serve is no reason to move the alias"
    assert registry.rollback(reason="by a person") == good
    wait_for("the mark's end", lambda: not unusable(server))
    assert server.draft_version == good


def test_an_adapter_whose_files_are_gone_never_serves(
    server: Server, config: HotdraftConfig, publish: Callable[[Spoil | None], int], good: int
) -> None:
    registry = AdapterRegistry(config)
    bad = publish(None)
    shutil.rmtree(registry.download(bad))
    registry.promote(bad, reason="forced")
    wait_for("the refusal", lambda: str(bad) in unusable(server))
    assert server.ask(3).draft_version == good
    assert registry.rollback(reason="by a person") == good


def unusable(server: Server) -> dict[str, str]:
    """Why the server cannot serve a version, by version."""
    return httpx.get(f"{server.url}/health", timeout=30.0).json().get("unusable_adapters", {})


def hotdraft(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-m", "hotdraft", *map(str, arguments)], timeout=120)


def started_hotdraft(*arguments: object) -> subprocess.CompletedProcess[str]:
    """As a user starts it, with imports of its own, of which a bad configuration needs few."""
    command = [sys.executable, "-m", "hotdraft", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def assert_one_line(done: subprocess.CompletedProcess[str], *told: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("hotdraft:")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    for words in told:
        assert words in done.stderr


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"engine": {"kk": 3}}, "engine.kk: no such key; did you mean engine.k?"),
        ({"speed": "fast"}, "speed: no such key"),
        ({"dtype": "float13"}, "dtype: Input should be 'auto', 'float32', 'bfloat16' or 'float16'"),
        ({"engine": {"k": -1}}, "engine.k: Input should be greater than or equal to 0"),
    ],
    ids=["nested key", "key", "dtype", "value"],
)
def test_a_bad_configuration_is_named(
    write_config: Callable[..., Path], tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    path = write_config(tmp_path, **changes)
    assert_one_line(started_hotdraft("serve", "--config", path), str(path), told)


def test_broken_yaml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("engine: {k: 3\ntarget: [")
    assert_one_line(started_hotdraft("replay", "stats", "--config", path), f"{path}:2: not valid YAML")


def test_an_unknown_dtype_flag_is_named(config_path: Path) -> None:
    assert_one_line(hotdraft("serve", "--config", config_path, "--dtype", "float13"), "dtype", "bfloat16")


def test_an_unknown_model_folder_is_named(write_config: Callable[..., Path], tmp_path: Path) -> None:
    path = write_config(tmp_path, target=str(tmp_path / "nowhere"))
    assert_one_line(hotdraft("serve", "--config", path), f"no model folder at '{tmp_path / 'nowhere'}'")


def test_an_unknown_version_is_named(config_path: Path, good: int) -> None:
    assert_one_line(hotdraft("adapters", "promote", "99", "--config", config_path), "no version 99")


def test_bad_traffic_is_named(config_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "traffic.jsonl"
    path.write_text(json.dumps({"domain": "d", "prompt": ""}) + "\n")
    done = hotdraft("simulate", "--traffic", path, "--config", config_path, "--out", tmp_path / "out")
    assert_one_line(done, f"{path}:1:", '"prompt" must be a non-empty string')
