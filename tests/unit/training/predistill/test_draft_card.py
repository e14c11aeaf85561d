from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
import yaml
from transformers import LlamaConfig

from hotdraft.pipeline.config.learning import PredistillConfig
from hotdraft.pipeline.models.names import Cut
from hotdraft.training.drafts.draft_cost import predicted_cost
from hotdraft.training.predistill.draft_card import CardFacts, figures_by_position, stated_licence, write_draft_card


def config(layers: int) -> LlamaConfig:
    return LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=layers,
                       num_attention_heads=4, num_key_value_heads=2)  # fmt: skip


@pytest.fixture
def base(tmp_path: Path) -> str:
    (tmp_path / "some-base").mkdir()
    return str(tmp_path / "some-base")


@pytest.fixture
def facts(base: str) -> CardFacts:
    return CardFacts(
        target=base,
        target_fingerprint="abcdef0123456789",
        origin=Cut(base, "abcdef0123456789", [0, 3], 48),
        settings=PredistillConfig(batch_tokens=1000, accumulate=2, learning_rate=3e-4),
        steps=1500,
        seconds=61.4,
        requests={"sql": 1000, "a|b": 200},
        tokens_by_kind={"answers of the target": 30_000, "text": 15_000, "answers of the draft": 0},
        figures={
            "all": {"prompts": 60, "greedy_agreement": 0.61, "overlap": 0.55},
            "sql": {"prompts": 50, "greedy_agreement": 0.7, "overlap": 0.6},
        },
        by_position={"9-16": {"positions": 1300, "greedy_agreement": 0.625, "overlap": 0.5}},
        cost=predicted_cost(config(8), config(2), head_size=None, max_k=4, dtype=torch.float32),
    )


def written(folder: Path, facts: CardFacts) -> str:
    write_draft_card(folder, facts)
    return (folder / "README.md").read_text()


def matter(card: str) -> dict:
    return yaml.safe_load(card.split("---\n")[1])


def test_the_card_of_a_draft_for_a_rounded_target_says_so(tmp_path, facts):
    assert "(weights\nabcdef012345, in 8 bits each)" in written(tmp_path, replace(facts, rounded_target=True))


def test_the_card_tells_where_the_draft_comes_from_and_what_it_reached(tmp_path, facts):
    card = written(tmp_path, facts)
    assert "Layers 0, 3 of `some-base`, 48 channels of the feed-forward in each" in card
    assert "(weights\nabcdef012345)" in card
    assert "1,200 prompts and texts" in card
    assert "answers of the target 67%, text 33%." in card
    assert "| sql | 1,000 |" in card
    assert r"| a\|b | 200 |" in card
    assert "1,500 steps of about\n2,000 packed tokens, learning rate 0.0003, 61 s" in card
    assert "| all | 60 | 0.610 | 0.550 |" in card
    assert "| sql | 50 | 0.700 | 0.600 |" in card
    assert "| 9-16 | 1,300 | 0.625 | 0.500 |" in card
    assert f"c = {facts.cost.cost_ratio:.3f}" in card
    assert f"{facts.cost.speed_up(0.61):.2f}x at its greedy agreement" in card
    assert f"torch {torch.__version__}, transformers {transformers.__version__}" in card
    assert str(tmp_path) not in card  # no path of this machine


def test_an_existing_model_and_a_lora(tmp_path, facts, base):
    settings = PredistillConfig(method="qlora", lora={"rank": 12}, draft="owner/small")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "README.md").write_text("---\nlicense: mit\n---\n# Own\n")
    card = written(tmp_path, replace(facts, origin=str(tmp_path / "own"), settings=settings))
    assert "`own`, trained further." in card
    assert "A LoRA of rank 12 on an NF4 base" in card
    assert matter(card)["license"] == "mit"


def test_the_front_matter_names_a_base_on_the_hub(tmp_path, facts, base, monkeypatch):
    assert "base_model" not in matter(written(tmp_path, facts))
    monkeypatch.setattr("hotdraft.training.predistill.draft_card.local_folder", lambda name: Path(base))
    fields = matter(written(tmp_path, replace(facts, target="owner/name")))
    assert fields["base_model"] == "owner/name"
    assert fields["library_name"] == "transformers"
    assert "speculative-decoding" in fields["tags"]
    assert "license" not in fields


@pytest.mark.parametrize(
    ("readme", "expected"),
    [
        ("---\nlicense: apache-2.0\nlanguage: en\n---\n# A model\n", "apache-2.0"),
        ("---\nlanguage: en\n---\nlicense: mit\n", None),
        ("# A model\n\n---\nlicense: mit\n---\n", None),
        ("---\nlicense: [a, b]\n---\n", None),
        ("---\nlicense: {\n---\n", None),
        ("", None),
    ],
)
def test_a_licence_is_told_only_as_the_base_states_it(base, readme, expected):
    assert stated_licence(base) is None
    (Path(base) / "README.md").write_text(readme)
    assert stated_licence(base) == expected


@pytest.mark.parametrize(
    ("readme", "expected"),
    [
        ("---\nlicense: mit\n---\nModèle".encode("latin-1"), "mit"),
        (b"---\nlicense: mit\nreleased: 2024-02-30\n---\n", None),
    ],
)
def test_an_odd_readme_of_the_base_does_not_cost_the_draft(base, readme, expected):
    (Path(base) / "README.md").write_bytes(readme)
    assert stated_licence(base) == expected


def test_figures_by_output_position():
    agreement = [np.ones(10), np.zeros(70), np.ones(17)]
    table = figures_by_position({"greedy_agreement": agreement, "overlap": [score / 2 for score in agreement]})
    assert {where: (values["positions"], values["greedy_agreement"]) for where, values in table.items()} == {
        "1-8": (24, pytest.approx(2 / 3)),
        "9-16": (2 + 8 + 8, pytest.approx(10 / 18)),
        "17-32": (16 + 1, pytest.approx(1 / 17)),
        "33-64": (32, 0.0),
        "65+": (6, 0.0),
    }
    assert table["1-8"]["overlap"] == pytest.approx(1 / 3)
    assert figures_by_position({"overlap": []}) == {}
    assert list(figures_by_position({"overlap": [np.ones(3)]})) == ["1-8"]
