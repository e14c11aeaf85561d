"""A draft that was trained with other tokens than its target: exact from the first answer, and better with each."""

import random
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hotdraft import LLM, ReplayBuffer, SamplingParams, distill
from hotdraft.pipeline.models.transplant import transplant

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

THINGS = ("apples", "bread", "candles", "books", "tickets", "lamps", "chairs", "shoes")
PLACES = ("market", "station", "harbour", "library", "garden")
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


def sentence(chance: random.Random) -> str:
    count, thing, place = chance.randint(2, 9), chance.choice(THINGS), chance.choice(PLACES)
    return f"Mary buys {count} {thing} at the {place} and pays {count * 2} dollars for the {thing}. "


def tokenizer_of(texts: list[str], size: int) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=["</s>"], initial_alphabet=alphabet)
    backend.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")


def trained(tokenizer: PreTrainedTokenizerFast, layers: int, text: str, folder: Path) -> str:
    torch.manual_seed(layers)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = LlamaForCausalLM(config)
    ids = torch.tensor(tokenizer(text).input_ids)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for _ in range(250):
        starts = torch.randint(len(ids) - 64, (16,))
        batch = torch.stack([ids[start : start + 64] for start in starts])
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


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
