"""What `hotdraft doctor` says of machine, packages, models, settings and jobs."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest
import torch
import yaml
from packaging.requirements import Requirement
from transformers import GPT2Config, GPT2LMHeadModel
from typer.testing import CliRunner

from hotdraft.cli import app
from hotdraft.doctor import machine, model_files
from hotdraft.doctor.finding import Finding
from hotdraft.doctor.leftover_jobs import examine_jobs
from hotdraft.doctor.machine import examine_machine
from hotdraft.doctor.model_files import examine_configured, examine_models
from hotdraft.doctor.model_fit import examine_fit
from hotdraft.doctor.packages import compare, compare_python, examine_packages
from hotdraft.doctor.settings import read_settings
from hotdraft.doctor.vllm import examine_vllm
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.controls import ControlFile
from hotdraft.pipeline.loop.job_record import JobWork
from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.serving.native.bindings import NativeError, NotCompiledError
from tests.models import save, tiny_llama, tiny_tokenizer


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTDRAFT_CACHE", str(tmp_path / "cache"))
    for name in [name for name in os.environ if name.startswith("HOTDRAFT_") and name != "HOTDRAFT_CACHE"]:
        monkeypatch.delenv(name)


def config_of(tmp_path: Path, **settings: object) -> HotdraftConfig:
    return HotdraftConfig(**{"target": "tiny", "run_dir": tmp_path / "run", **settings})


SHORT = {"max_model_len": 64}
"""What the tiny models' positions suffice for."""


def by_about(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.about: finding for finding in findings}


def test_packages_are_held_against_what_is_declared():
    wanted = [Requirement(text) for text in ("torch>=99", "no-such-package-of-ours>=1", "mlflow>=3", "rich>=1")]
    found = by_about(list(compare(wanted)))
    assert found["torch"].state == found["no-such-package-of-ours"].state == "problem"
    assert found["torch"].mend == '`pip install "torch>=99"`'
    assert found["mlflow"].state == "ok"
    assert "rich" not in found
    assert found["other packages"].says == "1 as required"
    assert [finding.state for finding in compare_python("3.10.2", ">=3.11")] == ["problem"]


def test_this_environment_has_what_hotdraft_declares():
    found = by_about(list(examine_packages()))
    assert {"Python", "torch", "transformers", "peft", "bitsandbytes", "lightning", "mlflow"} <= found.keys()
    assert {finding.state for finding in found.values()} == {"ok"}


def test_a_device_that_is_not_there_and_too_many_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    settings = config_of(tmp_path, distill={"device": "cuda:1", "threads": 1000})
    found = by_about(list(examine_machine(settings)))
    assert found["processor"].state == found["GPU"].state == "ok"
    assert found["distill.device"].state == "problem"
    assert found["distill.threads"].state == "warning"
    assert "device" not in found


def test_a_native_library_that_is_missing_or_lacks_the_instructions_that_are_asked_for(tmp_path, monkeypatch):
    def told(instructions):
        return by_about(list(examine_machine(config_of(tmp_path, engine={"instructions": instructions}))))[
            "native library"
        ]

    assert told("none").state == "ok"
    monkeypatch.setattr(machine, "find_instructions", raising(NotCompiledError))
    assert (told("auto").state, told("avx2").state) == ("warning", "problem")
    monkeypatch.setattr(machine, "find_instructions", raising(NativeError))
    assert (told("auto").state, told("avx2").state) == ("ok", "problem"), "what no compiler mends"


def raising(kind):
    def find(wanted):
        raise kind(f"no {wanted} here")

    return find


@pytest.mark.parametrize(("best", "warned"), [(torch.float32, True), (torch.bfloat16, False)])
def test_bfloat16_on_a_cpu_that_emulates_it(best, warned, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "choose_dtype", lambda dtype, device: best)
    found = by_about(list(examine_machine(config_of(tmp_path, device="cpu", dtype="bfloat16"))))
    assert ("dtype" in found) == warned
    assert "dtype" not in by_about(list(examine_machine(config_of(tmp_path, device="cpu"))))


def test_a_gpu_that_torch_cannot_use(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(machine, "NVIDIA_DRIVER", tmp_path / "version")
    (tmp_path / "version").write_text("NVRM version")
    assert by_about(list(examine_machine(None)))["GPU"].state == "warning"


def test_a_pair_of_one_vocabulary(tmp_path, tiny_target, tiny_draft):
    found = by_about(list(examine_models(config_of(tmp_path, target=tiny_target, draft=tiny_draft))))
    assert {finding.state for finding in found.values()} == {"ok"}
    assert found["shipped draft"].says.startswith("smollm2-draft")
    fit = by_about(list(examine_fit(config_of(tmp_path, target=tiny_target, draft=tiny_draft, engine=SHORT))))
    assert {finding.state for finding in fit.values()} == {"ok"}
    assert fit["vocabulary"].says == "target and draft share 257 tokens"


def test_a_draft_that_no_adapter_fits(tmp_path, tiny_target, tiny_draft):
    def told(draft: str, **lora: object) -> Finding:
        settings = config_of(tmp_path, target=tiny_target, draft=draft, distill={"lora": lora})
        return by_about(list(examine_fit(settings)))["adapter"]

    of_conv1d = GPT2LMHeadModel(GPT2Config(vocab_size=257, n_embd=32, n_layer=1, n_head=4))
    never = told(save(of_conv1d, tmp_path / "gpt2"))
    assert (never.state, "GPT2LMHeadModel has no linear layer" in never.says) == ("warning", True)
    mistyped = told(tiny_draft, target_modules=["q_porj", "v_proj"])
    assert (mistyped.state, "no linear layer ['q_porj']; it has ['down_proj'" in mistyped.says) == ("problem", True)
    assert told(tiny_draft, target_modules=["v_proj"]) == Finding("adapter", "ok", "the draft learns in v_proj")


def test_what_serving_would_refuse(tmp_path, tiny_target, tiny_draft):
    found = by_about(list(examine_fit(config_of(tmp_path, target=tiny_target, draft=tiny_draft))))
    assert found["limits"].state == "problem"
    assert "set engine.max_model_len to" in found["limits"].says


def test_a_target_alone_is_sped_up_by_guesses_from_text_if_by_anything(tmp_path, tiny_target):
    def draft(**engine: object) -> Finding:
        return by_about(list(examine_configured(config_of(tmp_path, target=tiny_target, engine=engine))))["draft"]

    assert (draft().state, "guessed from text" in draft().says) == ("ok", True)
    assert draft(k=0).state == "warning"


def test_what_vllm_would_refuse(tmp_path, tiny_target, tiny_draft, monkeypatch):
    def found(**settings: object) -> list[str]:
        settings["engine"] = {"kind": "vllm", **settings.get("engine", {})}
        told = config_of(tmp_path, **{"target": tiny_target, "draft": tiny_draft, **settings})
        return [f"{finding.state}: {finding.says}" for finding in examine_vllm(told)]

    monkeypatch.setattr("hotdraft.serving.vllm.versions.version", lambda _: "0.32.0")
    assert found() == ["ok: 0.32.0 can serve this pair"]
    assert found(engine={"k": 0}) == ["problem: engine.k 0: vLLM drafts at least 1 token a step: set another k"]
    assert found(draft=None)[0].startswith("problem: engine.kind vllm: name a draft")
    assert found(draft="./nowhere") == [], "which is said of the models"
    assert found(engine={"kind": "hotdraft"}) == []


def test_a_pair_of_two_vocabularies(tmp_path, tiny_target):
    draft = save(tiny_llama(layers=1, seed=2, vocab_size=258), tmp_path / "draft")
    other = tiny_tokenizer()
    other.add_tokens(["<more>"])
    other.save_pretrained(draft)
    found = by_about(list(examine_fit(config_of(tmp_path, target=tiny_target, draft=draft))))
    assert found["vocabulary"].state == "problem"
    assert "'<more>'" in found["vocabulary"].says


def test_models_that_are_not_there(tmp_path, tiny_target, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    found = by_about(list(examine_models(config_of(tmp_path, target="smollm2", draft="./nowhere"))))
    assert found["target"].mend == "`hotdraft models fetch smollm2`"
    assert found["target"].state == found["draft"].state == "problem"
    assert "vocabulary" not in found
    [*_, absent] = list(examine_models(config_of(tmp_path, target=tiny_target, draft="nobody/no-such-draft")))
    assert (absent.about, absent.state) == ("draft", "warning")
    assert "hf download nobody/no-such-draft" in (absent.mend or "")


def test_a_folder_that_lacks_weights(tmp_path, tiny_target):
    broken = shutil.copytree(tiny_target, tmp_path / "broken")
    (broken / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (broken / "model.safetensors.index.json").write_text(json.dumps(index))
    (broken / "model-1.safetensors").touch()
    found = by_about(list(examine_models(config_of(tmp_path, target=str(broken), draft=tiny_target))))
    assert found["target"].state == "problem"
    assert "lacks model-2.safetensors" in found["target"].says


def test_a_cut_draft_needs_its_base(tmp_path, tiny_target):
    found = by_about(list(examine_models(config_of(tmp_path, target=tiny_target, draft="smollm2-draft"))))
    assert found["draft"].state == "ok"
    assert found["base of draft"].state == "problem"
    assert "models fetch smollm2" in (found["base of draft"].mend or "")


def test_no_weights_are_read(tmp_path, tiny_target, tiny_draft, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("hotdraft.pipeline.models.loading.load_causal_lm", refuse)
    monkeypatch.setattr("hotdraft.pipeline.models.loading.read_tensors", refuse)
    monkeypatch.setattr("safetensors.torch.load_file", refuse)
    settings = config_of(tmp_path, target=tiny_target, draft=tiny_draft)
    list(examine_models(settings))
    list(examine_fit(settings))


def test_a_broken_installation(tmp_path, monkeypatch):
    monkeypatch.setattr(model_files, "SHIPPED_DRAFTS", tmp_path / "drafts")
    assert by_about(list(examine_models(None)))["shipped drafts"].state == "problem"
    (tmp_path / "drafts" / "cut").mkdir(parents=True)
    (tmp_path / "drafts" / "cut" / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    assert by_about(list(examine_models(None)))["shipped draft"].state == "problem"


def test_a_cache_that_is_no_folder(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOTDRAFT_CACHE", str(tmp_path / "file"))
    assert by_about(list(examine_models(None)))["model cache"].state == "warning"


def test_variables_that_are_misspelt(config_file, monkeypatch):
    monkeypatch.setenv("HOTDRAFT_ENGIN__K", "2")
    config, [found] = read_settings(config_file)
    assert (config, found.about, found.state) == (None, "configuration", "problem")
    assert "HOTDRAFT_ENGIN__K: no such key" in found.says


def test_jobs_without_a_verdict(tmp_path):
    settings, path = config_of(tmp_path), Path("my.yaml")
    assert [finding.state for finding in examine_jobs(settings, path)] == ["ok"]
    records = JobRecords(settings.run_dir)
    job = records.begin("command")
    assert [finding.state for finding in examine_jobs(settings, path)] == ["ok"]
    [record] = (settings.run_dir / "jobs" / "records").glob("*.json")
    an_hour_ago = time.time() - 3600
    os.utime(record, (an_hour_ago, an_hour_ago))
    [found] = examine_jobs(settings, path)
    assert (found.state, "is running and has told nothing for 60 minutes" in found.says) == ("warning", True)
    job.hand_over()  # as if its process had ended
    [found] = examine_jobs(settings, path)
    assert (found.state, "died" in found.says) == ("warning", True)
    assert "`hotdraft distill --config my.yaml` begins another" in (found.mend or ""), "it had begun nothing"


def test_what_is_gone_on_with_is_what_a_job_left(tmp_path):
    records = JobRecords(config_of(tmp_path).run_dir)
    with records.begin("command") as left:
        left.note(JobWork(left.id, "recipe", last_request="r1", parent_version=0))
        left.work_folder.mkdir()
        left.end("interrupted", "asked to stop")
    records.begin("command").end("failed", "the replay buffer cannot be opened")
    [found] = examine_jobs(config_of(tmp_path), Path("my.yaml"))
    assert "failed: the replay buffer" in found.says
    assert f"goes on where job {left.id} stopped" in (found.mend or "")


def test_broken_files_of_jobs_are_named(tmp_path):
    settings = config_of(tmp_path)
    JobRecords(settings.run_dir).begin("command").end("rejected", "worse")
    (settings.run_dir / "jobs" / "records" / "20260101-000000-aaaaaa.json").write_bytes(b"\xff")
    state, found = examine_jobs(settings, Path("my.yaml"))
    assert (state.state, found.state) == ("ok", "warning")
    assert "20260101-000000-aaaaaa.json is broken" in found.says


def test_broken_settings_of_an_operator_are_named(tmp_path):
    settings = config_of(tmp_path)
    settings.run_dir.mkdir()
    (settings.run_dir / "control.json").write_text("bad{")
    _, found = examine_jobs(settings, Path("my.yaml"))
    assert (found.about, found.state) == ("controls", "warning")
    assert "control.json is broken" in found.says
    assert "the loop rests" in found.says
    assert not ControlFile(settings.run_dir).read().loop_enabled
    assert "hotdraft loop on --config my.yaml" in (found.mend or "")


@pytest.fixture
def config_file(tmp_path: Path, tiny_target: str, tiny_draft: str) -> Path:
    path = tmp_path / "config.yaml"
    settings = {"target": tiny_target, "draft": tiny_draft, "run_dir": str(tmp_path / "run"), "server": {"port": 0}}
    settings["engine"] = SHORT
    path.write_text(yaml.safe_dump(settings))
    return path


def test_doctor_on_a_sound_configuration(config_file):
    told = CliRunner().invoke(app, ["doctor", "--config", str(config_file), "--json"])
    findings = json.loads(told.stdout)
    assert told.exit_code == 0
    abouts = {finding["about"] for finding in findings if finding["state"] == "ok"}
    assert {"configuration", "processor", "target", "vocabulary", "replay buffer", "MLflow store", "jobs"} <= abouts
    assert all(finding["mend"] is None for finding in findings if finding["state"] == "ok")
    assert not (config_file.parent / "run").exists()  # nothing is made by looking


def test_doctor_names_problems_and_how_to_mend_them(config_file):
    config_file.write_text(config_file.read_text() + "device: warp\nreplay: {url: 'nosuch://bucket'}\n")
    told = CliRunner().invoke(app, ["doctor", "-c", str(config_file)], env={"COLUMNS": "80"})
    assert told.exit_code == 1
    assert "2 problems, 0 warnings" in told.output
    assert told.output.count("→") == 2


def test_doctor_without_a_usable_configuration_looks_at_the_machine(tmp_path):
    (tmp_path / "bad.yaml").write_text("target: [")
    told = CliRunner().invoke(app, ["doctor", "-c", str(tmp_path / "bad.yaml")])
    assert told.exit_code == 1
    assert "not valid YAML" in " ".join(told.output.split())
    assert "processor" in told.output
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 0
