"""A draft that reads its target's states, from the command that makes it to the adapter that is swapped into it."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.integration.predistill.tiny_language import rates_of_a_job, sentence, tokenizer_of, trained

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_it_is_made_serves_exactly_and_learns_from_traffic(tmp_path: Path) -> None:
    chance = random.Random(0)
    sentences = [sentence(chance) for _ in range(1500)]
    target = trained(tokenizer_of(sentences, 330), 3, "".join(sentences), tmp_path / "target")
    prompts = [sentence(chance)[: chance.randint(12, 30)] for _ in range(48)]
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "trade.txt").write_text("".join(sentences[:100]))
    settings = {
        "target": target,
        "run_dir": str(tmp_path / "run"),
        "dtype": "float32",
        "device": "cpu",
        "predistill": {
            "hidden_states": [1, 3],
            "builtin_prompts": 0,
            "sources": [str(tmp_path / "texts")],
            "text_tokens": 64,
            "max_steps": 24,
            "batch_tokens": 512,
            "learning_rate": 3e-3,
        },
        "replay": {"held_out_fraction": 0.2},
    }
    (tmp_path / "make.yaml").write_text(yaml.safe_dump(settings))
    draft = str(tmp_path / "draft")
    command = [sys.executable, "-m", "hotdraft", "predistill", "-c", str(tmp_path / "make.yaml"), "--out", draft]
    made = subprocess.run([*command, "--slim"], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert "one layer on states of" in made.stdout

    rates = rates_of_a_job(target, draft, prompts, tmp_path)
    assert rates[0] > 0.1, "it drafts something from the start"
    assert rates[1] > rates[0] + 0.1
