"""A draft that was trained with other tokens than its target: exact from the first answer, and better with each."""

import random
from pathlib import Path

import pytest

from hotdraft.pipeline.models.transplant import transplant
from tests.integration.predistill.tiny_language import rates_of_a_job, sentence, tokenizer_of, trained

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_it_proposes_what_is_accepted_and_learns_where_the_target_cuts_text(tmp_path: Path) -> None:
    chance = random.Random(0)
    sentences = [sentence(chance) for _ in range(1500)]
    text = "".join(sentences)
    target = trained(tokenizer_of(sentences, 330), 2, text, tmp_path / "target")
    # other words are frequent where its tokens come from, so it cuts these otherwise
    elsewhere = [part.replace("buys", "sells").replace("dollars", "francs") for part in sentences[:40]]
    donor = trained(tokenizer_of([*elsewhere, "at stations and libraries " * 9], 300), 1, text, tmp_path / "donor")
    draft = str(tmp_path / "draft")
    found = transplant(donor, target, Path(draft))
    assert found.shared > 250
    assert found.spelled > 20
    prompts = [sentence(chance)[: chance.randint(12, 30)] for _ in range(64)]
    rates = rates_of_a_job(target, draft, prompts, tmp_path)
    assert rates[0] > 0.25
    assert rates[1] > rates[0] + 0.1
