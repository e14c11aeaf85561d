"""The step `distributions`: what is drawn with a draft is distributed as the target alone would have it."""

import numpy as np
import torch
from scipy.stats import chisquare

from hotdraft.gpu_check.checks.decoding import examine_graphs, graphs_of, start, tiny_model
from hotdraft.gpu_check.plan import CheckPlan, Found
from hotdraft.serving.decoding.build import build_decoder
from hotdraft.serving.decoding.decoder import SpeculativeDecoder
from hotdraft.serving.messages.request import SamplingParams
from hotdraft.serving.models.runner import Window
from hotdraft.serving.proposers.plan import ProposalPlan
from hotdraft.serving.sampling.distributions import Distributions
from hotdraft.serving.sampling.logits import SamplingBatch

VOCABULARY = 32
ROWS = 256
ROUNDS = 24
K = 3
PROMPT = list(range(2, 14))
LEAST_P = 1e-4
"""Of each test: with some dozen of them one in a thousand sound devices is accused."""
WAYS = {
    "temperature 1": SamplingParams(temperature=1.0),
    "temperature 0.6": SamplingParams(temperature=0.6),
    "top_p 0.8": SamplingParams(top_p=0.8),
    "top_k 8": SamplingParams(top_k=8),
    "min_p 0.1": SamplingParams(min_p=0.1),
    "eta 0.02": SamplingParams(eta_cutoff=0.02),
}


def check(plan: CheckPlan) -> Found:
    decoder = _decoder(plan)
    start(decoder, [PROMPT] * ROWS)
    found = Found({"draws of each": ROWS * ROUNDS})
    for name, params in WAYS.items():
        first, second = _drawn(decoder, params)
        usual = int(np.bincount(first).argmax())
        for token, draws, context in (
            ("first", first, PROMPT),
            ("second", second[first == usual], [*PROMPT, usual]),
        ):
            draws = draws[draws >= 0]
            p_value = _p_value(draws, _expected(decoder, context, params))
            found.figures[f"{name}, {token} token, p"] = round(p_value, 5)
            if p_value < LEAST_P:
                found.wrong.append(
                    f"{name}: the {token} of {len(draws)} tokens is not the target's, p {p_value:.1g}"
                )
    examine_graphs(decoder, found, unused=["drafting"])
    return found


def _decoder(plan: CheckPlan) -> SpeculativeDecoder:
    return build_decoder(
        tiny_model(plan.place, VOCABULARY, 2),
        tiny_model(plan.place, VOCABULARY, 1),
        num_slots=ROWS + 1,
        max_model_len=64,
        max_k=K,
        log_top_k=4,
        instructions="none",
        graphs=graphs_of(plan),
    )


def _drawn(decoder: SpeculativeDecoder, params: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    """First and second tokens of many rounds; -1 where a round brought one."""
    first, second = [], []
    for number in range(ROUNDS):
        for row in range(ROWS):
            decoder.rewind(row, len(PROMPT))
        seeds = range(number * ROWS, (number + 1) * ROWS)
        sampling = SamplingBatch.of([params] * ROWS, seeds, decoder.device)
        outcome = decoder.round(ProposalPlan.uniform(ROWS, K), sampling, log=False)
        first.append(outcome.token_ids[:, 0])
        second.append(np.where(outcome.num_accepted > 0, outcome.token_ids[:, 1], -1))
    return np.concatenate(first), np.concatenate(second)


@torch.inference_mode()
def _expected(decoder: SpeculativeDecoder, context: list[int], params: SamplingParams) -> np.ndarray:
    """The target's probabilities [N] after `context`, which it reads in a slot that no round uses.

    From logits on it is the CPU that computes them, whose filters the project's tests try.
    """
    ids = torch.tensor([context], device=decoder.device)
    positions = torch.arange(len(context), device=decoder.device)[None]
    window = Window(slice(ROWS, ROWS + 1), positions, decoder.slots.key_length(len(context)))
    logits = decoder.target.runner.forward(window, ids, 1).float().cpu()
    distributions = Distributions.of(logits, SamplingBatch.of([params], [0], logits.device))
    return distributions.probs_at(torch.tensor([0]))[0].double().numpy()


def _p_value(draws: np.ndarray, expected: np.ndarray) -> float:
    """Of Pearson's test, with what is rare put together; 0 where something came that has no probability."""
    counts = np.bincount(draws, minlength=len(expected))
    if counts[expected == 0].any():
        return 0.0
    wanted = expected / expected.sum() * len(draws)
    common = wanted >= 10
    observed, wanted = (np.append(of[common], of[~common].sum()) for of in (counts, wanted))
    if (wanted > 0).sum() < 2:  # one token alone is possible, and came
        return 1.0
    return float(chisquare(observed[wanted > 0], wanted[wanted > 0]).pvalue)
