"""Sentences of few words, and tiny models that have learned them."""

import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hotdraft import LLM, ReplayBuffer, SamplingParams, distill

THINGS = ("apples", "bread", "candles", "books", "tickets", "lamps", "chairs", "shoes")
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
PLACES = ("market", "station", "harbour", "library", "garden")


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


def rates_of_a_job(target: str, draft: str, prompts: list[str], folder: Path) -> list[float]:
    """Acceptance rates before and after a job on what was served, while answers are the target's to the token."""
    buffer = ReplayBuffer(str(folder / "traffic"))
    with LLM(target, None, device="cpu", dtype="float32") as alone:
        expected = [one.outputs[0].token_ids for one in alone.generate(prompts, GREEDY)]
    with LLM(target, draft, device="cpu", dtype="float32", k=3) as llm:
        llm.record_to(buffer)
        first = llm.generate(prompts, GREEDY)
        llm.record_to(None)
        result = distill(target, draft, buffer, run_dir=folder / "jobs", device="cpu", max_steps=60)
        llm.swap(result.adapter)
        second = llm.generate(prompts, GREEDY)
    for answers in (first, second):
        assert [one.outputs[0].token_ids for one in answers] == expected
    return [sum(one.acceptance_rate for one in answers) / len(answers) for answers in (first, second)]
