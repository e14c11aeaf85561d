"""A decoder of tiny models, its rounds, and what transformers says in its place."""

import torch
from transformers import PreTrainedModel

from hotdraft.pipeline.models.loading import load_causal_lm
from hotdraft.serving.decoding.build import build_decoder
from hotdraft.serving.decoding.decoder import SpeculativeDecoder
from hotdraft.serving.messages.request import SamplingParams
from hotdraft.serving.models.attention import ATTENTION, register_attention
from hotdraft.serving.proposers.plan import ProposalPlan
from hotdraft.serving.sampling.logits import SamplingBatch
from tests.unit.serving.clients import greedy

PROMPTS = [[1], [5, 6, 7], list(range(10, 50)), [9, 9, 9, 9, 9, 9]]
NEW_TOKENS = 24
GREEDY = SamplingParams(temperature=0)


def load(path: str) -> PreTrainedModel:
    register_attention()
    return load_causal_lm(path, attn_implementation=ATTENTION)


def make_decoder(
    target: str, draft: str | None, max_k: int = 4, draft_vocabulary: torch.Tensor | None = None
) -> SpeculativeDecoder:
    return build_decoder(
        load(target),
        load(draft) if draft else None,
        num_slots=len(PROMPTS),
        max_model_len=100,
        max_k=max_k,
        log_top_k=8,
        draft_vocabulary=draft_vocabulary,
    )


def start(
    decoder: SpeculativeDecoder, prompts: list[list[int]], chunk: int = 7, with_proposer: bool = True
) -> None:
    for row, prompt in enumerate(prompts):
        decoder.load(row, prompt)
        while not decoder.prefill(row, chunk, with_proposer=with_proposer):
            pass


def batch(params: list[SamplingParams], seeds: list[int] | None = None) -> SamplingBatch:
    return SamplingBatch.of(params, seeds or list(range(len(params))), torch.device("cpu"))


def run(decoder: SpeculativeDecoder, ks: list[int], sampling: SamplingBatch, rows: int) -> list[list[int]]:
    """Rounds with the k of `ks` in turn until every row has `NEW_TOKENS`."""
    outputs: list[list[int]] = [[] for _ in range(rows)]
    turn = 0
    while min(map(len, outputs)) < NEW_TOKENS:
        outcome = decoder.round(ProposalPlan.uniform(rows, ks[turn % len(ks)]), sampling, log=False)
        turn += 1
        for row in range(rows):
            outputs[row] += outcome.token_ids[row, : outcome.num_new[row]].tolist()
    return [output[:NEW_TOKENS] for output in outputs]


def greedy_reference(target: str, prompts: list[list[int]]) -> list[list[int]]:
    return [greedy(target, tuple(prompt), NEW_TOKENS) for prompt in prompts]
