"""A draft that was trained with other tokens than its target: exact from the first answer, and better with each."""

import random
from pathlib import Path

import pytest

from hotdraft import LLM, ReplayBuffer, SamplingParams, distill
from hotdraft.pipeline.models.transplant import transplant
from tests.integration.predistill.tiny_language import sentence, tokenizer_of, trained

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


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
    buffer = ReplayBuffer(str(tmp_path / "traffic"))
    with LLM(target, None, device="cpu", dtype="float32") as alone:
        expected = [one.outputs[0].token_ids for one in alone.generate(prompts, GREEDY)]
    with LLM(target, draft, device="cpu", dtype="float32", k=3) as llm:
        llm.record_to(buffer)
        first = llm.generate(prompts, GREEDY)
        llm.record_to(None)
        assert [one.outputs[0].token_ids for one in first] == expected
        result = distill(target, draft, buffer, run_dir=tmp_path / "run", device="cpu", max_steps=60)
        llm.swap(result.adapter)
        second = llm.generate(prompts, GREEDY)
        assert [one.outputs[0].token_ids for one in second] == expected
    rates = [sum(one.acceptance_rate for one in answers) / len(answers) for answers in (first, second)]
    assert rates[0] > 0.25
    assert rates[1] > rates[0] + 0.1
