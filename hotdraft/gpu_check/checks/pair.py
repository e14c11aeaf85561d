"""The step `pair`: a target and a draft, real where they are to be had."""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from hotdraft.gpu_check.plan import CheckPlan, Found, Pair
from hotdraft.pipeline.models.byte_tokenizer import byte_tokenizer
from hotdraft.pipeline.models.fetch import fetch
from hotdraft.pipeline.models.inflate import inflate
from hotdraft.pipeline.models.names import ModelError


def check(plan: CheckPlan) -> Found:
    work = plan.folder
    small, draft, source = _random(plan) if plan.random else _real(plan)
    found = Found({"models": source})
    target = small
    if plan.parameters is not None:
        target = str(work / "target")
        found.figures["target parameters"] = inflate(small, plan.parameters, Path(target), device=plan.place)
    Pair(small, target, draft, source).write(plan)
    return found


def _real(plan: CheckPlan) -> tuple[str, str, str]:
    try:
        fetch("smollm2")
    except ModelError as error:
        small, draft, source = _random(plan)
        return small, draft, f"{source}, as {error}"
    return "smollm2", "smollm2-draft", "SmolLM2-135M-Instruct and its draft"


def _random(plan: CheckPlan) -> tuple[str, str, str]:
    """The draft is the target's first layers: sometimes they agree."""
    work = plan.folder
    torch.manual_seed(0)
    tiny = plan.parameters is None
    config = LlamaConfig(
        vocab_size=512 if tiny else 49_152,
        hidden_size=64 if tiny else 576,
        intermediate_size=128 if tiny else 1536,
        num_hidden_layers=4 if tiny else 30,
        num_attention_heads=4 if tiny else 9,
        num_key_value_heads=2 if tiny else 3,
        max_position_embeddings=2048,
        initializer_range=0.1,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=256,
    )
    target = LlamaForCausalLM(config)
    layers = config.num_hidden_layers * 3 // 4
    draft = LlamaForCausalLM(LlamaConfig(**{**config.to_dict(), "num_hidden_layers": layers}))
    draft.load_state_dict(target.state_dict(), strict=False)
    sizes = "tiny" if tiny else "of SmolLM2's shape"
    return _save(target, work / "small"), _save(draft, work / "draft"), f"made at random, {sizes}"


def _save(model: PreTrainedModel, folder: Path) -> str:
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return str(folder)
