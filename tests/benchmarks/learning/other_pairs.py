"""Pairs of other architectures, trained on the spot: models that answer the built-in prompts.

The target has learned arithmetic and text-to-SQL, the draft arithmetic alone, so that text-to-SQL is a shift.
"""

import random
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoModelForCausalLM,
    GPTNeoXConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from hotdraft.pipeline.traffic.generators import arithmetic, text_to_sql
from hotdraft.pipeline.traffic.prompts import Prompt
from tests.benchmarks.learning.worked_answers import worked_answer
from tests.models import CHAT_TEMPLATE

ARCHITECTURES: dict[str, type[PreTrainedConfig]] = {"gpt_neox": GPTNeoXConfig, "qwen2": Qwen2Config}
VOCABULARY = 1500
SEED = 1000
"""Of prompts that no stream of a small seed has."""
WARMUP = 20
UNLEARNED = -100


def train_pair(
    folder: Path, architecture: str, *, target_steps: int = 600, draft_steps: int = 400
) -> tuple[str, str]:
    """Folders of target and draft, the same ones each time. Takes about two minutes on two cores."""
    numbers, queries = arithmetic(3000, SEED), text_to_sql(3000, SEED)
    tokenizer = train_tokenizer(
        [text for prompt in numbers + queries for text in (*_turns(prompt), worked_answer(prompt))]
    )
    target = untrained(architecture, tokenizer, width=128, layers=4)
    train(target, tokenizer, numbers + queries, target_steps)
    draft = untrained(architecture, tokenizer, width=64, layers=1)
    train(draft, tokenizer, numbers, draft_steps)
    for model, name in ((target, "target"), (draft, "draft")):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return str(folder / "target"), str(folder / "draft")


def _turns(prompt: Prompt) -> list[str]:
    return [message["content"] for message in prompt.messages]


def train_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<eos>"], initial_alphabet=sorted(alphabet), show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", chat_template=CHAT_TEMPLATE)


def untrained(architecture: str, tokenizer: PreTrainedTokenizerBase, *, width: int, layers: int) -> PreTrainedModel:
    torch.manual_seed(0)
    config = ARCHITECTURES[architecture](
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,  # of Qwen2 another number by default
        max_position_embeddings=1024,
        initializer_range=0.06,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    return AutoModelForCausalLM.from_config(config)


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    steps: int,
    *,
    batch: int = 8,
    learning_rate: float = 3e-3,
) -> None:
    """Language modelling of the answers, with a rate that warms up and then falls to nothing."""
    examples = [_example(tokenizer, prompt) for prompt in prompts]
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / WARMUP, 1 - step / steps))
    rng = random.Random(0)
    model.train()
    for _ in range(steps):
        tokens, labels = zip(*rng.sample(examples, batch), strict=True)
        loss = model(
            input_ids=pad_sequence(list(tokens), batch_first=True),
            labels=pad_sequence(list(labels), batch_first=True, padding_value=UNLEARNED),
        ).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()


def _example(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids of the whole conversation, and those to be learned."""
    asked = tokenizer.apply_chat_template(prompt.messages, add_generation_prompt=True, return_dict=False)
    answer = tokenizer(worked_answer(prompt))["input_ids"]
    tokens = torch.tensor([*asked, *answer, tokenizer.eos_token_id])
    labels = tokens.clone()
    labels[: len(asked)] = UNLEARNED
    return tokens, labels
