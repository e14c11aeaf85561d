"""Poisoned jobs on a tiny pair: nothing that is worse than the champion gets through the gate."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from hotdraft.pipeline.config.settings import HotdraftConfig, load_config
from hotdraft.pipeline.replay.sample import NOT_DRAFTED, ReplaySample
from tests.scenarios.poisoned_jobs import POISONS, Case, Outcome, run_case

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

DOMAINS = {"low": range(20, 100), "high": range(140, 220)}
"""Tokens that prompts of a domain are made of."""
PROMPT, ANSWER, TOP_K = 6, 20, 64
RECORDED, PROBES = 90, 24


@torch.no_grad()
def answered(target: LlamaForCausalLM, count: int, seed: int, prefix: str) -> list[ReplaySample]:
    """Requests of both domains in turn, one pair in four sampled, the others greedy."""
    generator = torch.Generator().manual_seed(seed)
    names = [list(DOMAINS)[index % 2] for index in range(count)]
    ids = torch.stack(
        [torch.randint(DOMAINS[name].start, DOMAINS[name].stop, (PROMPT,), generator=generator) for name in names]
    )
    greedy = torch.arange(count) // 2 % 4 != 0
    for _ in range(ANSWER):
        probs = target(ids).logits[:, -1].softmax(-1)
        drawn = torch.multinomial(probs, 1, generator=generator)[:, 0]
        ids = torch.cat([ids, torch.where(greedy, probs.argmax(-1), drawn)[:, None]], 1)
    top, top_ids = target(ids).logits[:, PROMPT - 1 : -1].log_softmax(-1).topk(TOP_K)
    tail = (1 - top.exp().sum(-1)).clamp_min(1e-9).log()
    return [
        ReplaySample(
            request_id=f"{prefix}{seed}-{index}",
            created_at=float(index),
            domain=name,
            temperature=0.0 if greedy[index] else 1.0,
            prompt_ids=ids[index, :PROMPT].numpy().astype(np.int32),
            output_ids=ids[index, PROMPT:].numpy().astype(np.int32),
            target_top_ids=top_ids[index].numpy().astype(np.int32),
            target_top_logprobs=top[index].numpy().astype(np.float16),
            target_tail_logprob=tail[index].numpy(),
            drafted_ids=np.full(ANSWER, NOT_DRAFTED, np.int32),
            accepted=np.zeros(ANSWER, bool),
            draft_versions=np.zeros(ANSWER, np.int32),
        )
        for index, name in enumerate(names)
    ]


@pytest.fixture(scope="module")
def target(pair: tuple[str, str]) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(pair[0])


@pytest.fixture
def play(
    target: LlamaForCausalLM, write_config: Callable[..., Path], tmp_path: Path
) -> Callable[[Case, int], Outcome]:
    """`play(case, seed)` runs one job under the gate's defaults."""

    def run(case: Case, seed: int) -> Outcome:
        distill = {"max_steps": 60, "checkpoint_steps": 60, "learning_rate": 0.02, "seed": seed}
        gate = {"wait_seconds": 0}  # nobody asks anything meanwhile
        config: HotdraftConfig = load_config(write_config(tmp_path, distill=distill, gate=gate))
        return run_case(
            config, case, answered(target, RECORDED, seed, "r"), answered(target, PROBES, seed + 99, "p")
        )

    return run


@pytest.mark.parametrize("name", POISONS)
def test_no_poison_brings_a_worse_adapter_to_service(name: str, play: Callable[[Case, int], Outcome]) -> None:
    outcome = play(POISONS[name], 0)
    assert not outcome.bad, outcome


@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_job_on_clean_requests_is_promoted(seed: int, play: Callable[[Case, int], Outcome]) -> None:
    outcome = play(Case(), seed)
    assert outcome.promoted, outcome
    assert outcome.left_out == 0
    assert outcome.candidate > outcome.champion + 0.02
