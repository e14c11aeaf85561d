"""`hotdraft predistill` as a user starts it: from a target's folder to a draft that transformers loads."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from hotdraft.cli import app
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.store.connection import open_client
from hotdraft.training.predistill.make import EXPERIMENT
from tests.integration.processes import wait_for
from tests.integration.warm.start import run as warm_run
from tests.integration.warm.start import start
from tests.models import tiny_llama, tiny_tokenizer

pytestmark = [pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predistill")
    tiny_llama(3, seed=1).save_pretrained(folder / "target")
    tiny_tokenizer().save_pretrained(folder / "target")
    other = tiny_tokenizer()
    other.add_tokens(["<new>"])
    tiny_llama(1, seed=2, vocab_size=258).save_pretrained(folder / "other")
    other.save_pretrained(folder / "other")
    lines = [json.dumps({"domain": "count", "prompt": f"Count to {n}."}) for n in range(60)]
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "empty.jsonl").write_text("")
    settings = {
        "target": str(folder / "target"),
        "dtype": "float32",
        "device": "cpu",
        "run_dir": str(folder / "run"),
        "engine": {"max_model_len": 256},
        "replay": {"held_out_fraction": 0.2},
        "predistill": {
            "layers": 1,
            "builtin_prompts": 0,
            "max_tokens": 12,
            "max_steps": 12,
            "validation_steps": 6,
            "batch_tokens": 256,
        },
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    return folder


def test_a_draft_that_transformers_loads(folder: Path) -> None:
    out = folder / "draft"
    command = [sys.executable, "-m", "hotdraft", "predistill", "--config", "config.yaml"]
    done = warm_run([*command, "--prompts", "prompts.jsonl", "--out", "draft"], cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "60/60" in done.stdout
    step, _, recording = done.stdout.partition("target answers")
    assert re.search(r"Time: \d+\.\d min for training at [\d,]+ tokens/s, \d+\.\d\d GB at its peak", step)
    assert recording
    assert "The draft is in draft: `hotdraft serve " in done.stdout
    assert "Speed-up over plain decoding" in done.stdout
    draft = AutoModelForCausalLM.from_pretrained(out)
    assert draft.config.num_hidden_layers == 1
    target = AutoModelForCausalLM.from_pretrained(folder / "target")
    assert torch.equal(draft.lm_head.weight, target.lm_head.weight)
    ids = AutoTokenizer.from_pretrained(out)("Count", return_tensors="pt").input_ids
    plain = target.generate(ids, max_new_tokens=8, do_sample=False)
    assert torch.equal(target.generate(ids, max_new_tokens=8, do_sample=False, assistant_model=draft), plain)
    assert not (folder / "run" / "checkpoints").exists()

    assert "not empty" in refusal(folder / "config.yaml", "--prompts", str(folder / "prompts.jsonl"), out=out)


def test_killed_when_the_draft_is_written_it_goes_on_from_there(folder: Path) -> None:
    out, run_dir = folder / "killed", folder / "killed-run"
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "killed.yaml").write_text(yaml.safe_dump({**settings, "run_dir": str(run_dir)}))
    command = [sys.executable, "-m", "hotdraft", "predistill", "--config", "killed.yaml"]
    command += ["--prompts", "prompts.jsonl", "--out", "killed"]
    process = start(command, stdout=subprocess.DEVNULL, cwd=folder)
    wait_for("the draft", out.is_dir, 120)
    process.kill()
    assert process.wait() == -9, "ended before it could be killed"
    written = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}

    again = warm_run(command, cwd=folder)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "The draft in killed is finished" in again.stdout
    assert "On prompts never trained on" in again.stdout
    assert "Speed-up over plain decoding" in again.stdout
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == written
    assert not (run_dir / "checkpoints").exists()
    client = open_client(HotdraftConfig(target="unused", run_dir=run_dir))
    (run,) = client.search_runs([client.get_experiment_by_name(EXPERIMENT).experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.metrics.keys() >= {"greedy_agreement/all", "measured_speed_up"}

    prompts = str(folder / "prompts.jsonl")
    assert "not empty" in refusal(folder / "killed.yaml", "--prompts", prompts, out=out)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--prompts", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--prompts", "empty.jsonl"], "no prompts"),
        (["--prompts", "prompts.jsonl", "--draft", "other"], "need one vocabulary"),
        (["--prompts", "prompts.jsonl", "--draft", "absent/one/two"], "no model folder"),
    ],
    ids=["unknown dataset", "empty file", "vocabulary", "no such draft"],
)
def test_bad_input_is_named_before_any_work(
    folder: Path, options: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert told in refusal(Path("config.yaml"), *options)
    assert not (folder / "refused").exists()


def test_a_layer_that_is_not_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    settings["predistill"]["layers"] = [0, 3]
    (folder / "wrong.yaml").write_text(yaml.safe_dump(settings))
    assert "from 0 to 2" in refusal(Path("wrong.yaml"), "--prompts", "prompts.jsonl")
    assert not (folder / "refused").exists()


def test_a_step_is_tried_before_the_recording_unless_some_were_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(told: str):
        raise ValueError(told)

    monkeypatch.setattr("hotdraft.answering.speed.try_training", lambda *_: refuse("a step was tried"))
    monkeypatch.setattr("hotdraft.answering.collect.collect", lambda *_: refuse("answers were recorded"))
    settings = yaml.safe_load((folder / "config.yaml").read_text()) | {"run_dir": str(folder / "begun")}
    config = folder / "begun.yaml"
    config.write_text(yaml.safe_dump(settings))
    options = ["--prompts", str(folder / "prompts.jsonl")]
    killed = folder / "begun" / "hotdraft-trial-killed" / "checkpoints"
    killed.mkdir(parents=True)
    assert "a step was tried" in refusal(config, *options)
    assert not killed.parent.exists()
    assert "a step was tried" in refusal(config, *options, "--plan")
    checkpoints = folder / "begun" / "checkpoints"
    checkpoints.mkdir(parents=True)
    (checkpoints / "last.ckpt").write_bytes(b"")
    assert "answers were recorded" in refusal(config, *options)
    (checkpoints / "run.json").write_text(json.dumps({"run_id": "r", "recipe": {"max_tokens": 13}}))
    assert re.search(r"begun with other settings \(.*max_tokens", refusal(config, *options))


def refusal(config: Path, *options: str, out: Path = Path("refused")) -> str:
    """What the command says in the end: an error that the command line makes one line of."""
    result = CliRunner().invoke(app, ["predistill", "--config", str(config), "--out", str(out), *options])
    assert result.exit_code != 0
    assert isinstance(result.exception, (ValueError, SystemExit)), result.exception
    return f"{result.output}{result.exception}"
