"""Rounds over a trimmed draft draw from the target's distribution, of which the draft knows only a part."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor
from transformers import LlamaForCausalLM

from hotdraft.serving.decoding.build import build_decoder
from hotdraft.serving.decoding.decoder import SpeculativeDecoder
from hotdraft.serving.messages.request import SamplingParams
from hotdraft.serving.proposers.plan import ProposalPlan
from hotdraft.serving.sampling.distributions import Distributions
from hotdraft.serving.sampling.logits import SamplingBatch
from tests.models import disturbed, tiny_llama

VOCABULARY = 12
PROMPT = [1, 2, 3, 4]
ROWS, TURNS = 250, 24
KNOWN = torch.tensor([0, 2, 3, 5, 8, 10])
PARAMS = {
    "plain": SamplingParams(temperature=0.8),
    "filtered": SamplingParams(temperature=1.2, top_k=7, top_p=0.95),
    "penalised": SamplingParams(temperature=1.2, top_k=7, presence_penalty=-1.0, frequency_penalty=2.0),
}


def pairs(model: LlamaForCausalLM, params: SamplingParams) -> Tensor:
    """[V, V]: the exact probability of each first and second token."""
    unseeded = SamplingBatch.of([replace(params, seed=None)] * VOCABULARY, [0] * VOCABULARY, torch.device("cpu"))
    contexts = torch.tensor([[*PROMPT, token] for token in range(VOCABULARY)])
    with torch.no_grad():
        logits = model(contexts).logits[:, -2:]
    logits[:, 1].diagonal().sub_(params.presence_penalty + params.frequency_penalty)  # it came once before
    given = Distributions.of(logits, unseeded)
    probs = torch.stack([given.probs_at(torch.full((VOCABULARY,), t)) for t in (0, 1)], 1).double()
    probs /= probs.sum(-1, keepdim=True)
    return probs[0, 0][:, None] * probs[:, 1]


def drawn(
    decoder: SpeculativeDecoder, params: SamplingParams, plan: ProposalPlan, first_seed: int
) -> tuple[Tensor, float]:
    """How often [V, V] each first and second token came, and the share of drafted tokens that was accepted."""
    k = plan.k
    for row in range(ROWS):
        decoder.load(row, PROMPT)
        while not decoder.prefill(row, 16, with_proposer=True):
            pass
    counts = torch.zeros(VOCABULARY, VOCABULARY)
    accepted = rounds = 0
    for turn in range(TURNS):
        seeds = range(first_seed + turn * ROWS, first_seed + (turn + 1) * ROWS)
        sampling = SamplingBatch.of([params] * ROWS, seeds, decoder.device)
        for _ in range(2):
            outcome = decoder.round(plan, sampling, log=False)
            assert np.isin(outcome.proposed_ids[:, :k], KNOWN).all()
            accepted, rounds = accepted + int(outcome.num_accepted.sum()), rounds + ROWS
        start = len(PROMPT)
        counts += torch.histogramdd(
            decoder.slots.tokens[:ROWS, start : start + 2].double(), VOCABULARY, range=[0, VOCABULARY] * 2
        ).hist.float()
        for row in range(ROWS):
            decoder.rewind(row, start)
    return counts, accepted / (rounds * k) if k else 0.0


def pvalue(counts: Tensor, probs: Tensor) -> float:
    """Of `counts` under `probs`, both [V, V]; all cells expected less than 5 times are one."""
    found, expected = counts.flatten().numpy(), (probs * counts.sum()).flatten().numpy()
    if found[expected == 0].any():
        return 0.0
    rare = expected < 5
    observed = np.array([*found[~rare], found[rare].sum()])
    wanted = np.array([*expected[~rare], expected[rare].sum()])
    return float(chisquare(observed[wanted > 0], wanted[wanted > 0]).pvalue)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("k", "alternatives", "seed"),
    [(1, 0, None), (3, 0, None), (0, 0, 1), (3, 0, 1), (1, 4, None), (3, 5, None), (3, 5, 1)],
)
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())
def test_tokens_come_as_often_as_the_target_says(
    params: SamplingParams, k: int, alternatives: int, seed: int | None
) -> None:
    """With a seed each request has another, and both models draw with the same noise."""
    params = replace(params, seed=seed)
    target = tiny_llama(layers=2, seed=1, vocab_size=VOCABULARY)
    draft = disturbed(target)
    exact, drafts_own = pairs(target, params), pairs(draft, params)
    unknown = [token for token in range(VOCABULARY) if token not in KNOWN]
    assert exact.sum(1)[unknown].sum() > 0.2, "the draft cannot propose much of it"
    decoder = build_decoder(
        target,
        draft,
        num_slots=ROWS,
        max_model_len=16,
        max_k=max(k, 1),
        max_alternatives=alternatives,
        log_top_k=4,
        draft_vocabulary=KNOWN,
    )
    plan = ProposalPlan.uniform(ROWS, k, alternatives)
    counts, accepted = drawn(decoder, params, plan, first_seed=100_000 * k)
    assert k == 0 or 0.1 < accepted < 0.9, "a draft that is never or always right shows little"
    assert pvalue(counts, exact) > 1e-4
    assert pvalue(counts, drafts_own) < 1e-6, "the check has teeth"


def test_a_seeded_row_drafts_behind_what_was_guessed_what_it_would_draft_there() -> None:
    """Both models race on the noise of the place where a token will stand: a draft that is the target's equal is
    never refused."""
    model = tiny_llama(layers=1, seed=5, vocab_size=VOCABULARY)
    params = replace(PARAMS["penalised"], seed=3, presence_penalty=1.0)

    def decoder() -> SpeculativeDecoder:
        made = build_decoder(
            copy.deepcopy(model), copy.deepcopy(model), num_slots=1, max_model_len=64, max_k=4, log_top_k=4,
            max_proposed=8, instructions="none",
        )  # fmt: skip
        made.load(0, PROMPT)
        while not made.prefill(0, 16, with_proposer=True):
            pass
        return made

    sampling = SamplingBatch.of([params], [3], torch.device("cpu"))
    alone, guessed = decoder(), decoder()
    while len(alone.slots.held(0)) < len(PROMPT) + 40:
        alone.round(ProposalPlan.uniform(1, 0), sampling, log=False)
    answer = alone.slots.held(0)[len(PROMPT) :].tolist()
    while (came := len(guessed.slots.held(0)) - len(PROMPT)) < 30:
        outcome = guessed.round(ProposalPlan([answer[came : came + 3]], [3]), sampling, log=False)
        assert outcome.num_accepted.tolist() == [6]
    assert guessed.slots.held(0)[len(PROMPT) :].tolist()[:30] == answer[:30]
