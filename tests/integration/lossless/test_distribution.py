"""At a temperature, speculation draws from the target's own distribution, whichever draft is live."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from scipy.stats import chisquare
from torch.nn.functional import one_hot

from hotdraft.pipeline.config.learning import PredistillConfig
from hotdraft.pipeline.models.loading import fingerprint, load_causal_lm
from hotdraft.serving.decoding.build import build_decoder
from hotdraft.serving.decoding.choice import Choice, ProposalChoice
from hotdraft.serving.decoding.costs import RoundCosts
from hotdraft.serving.decoding.guessing import Guessing
from hotdraft.serving.decoding.learned_costs import RoundSetting
from hotdraft.serving.decoding.outlook import Outlook
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.messages.events import RoundStats
from hotdraft.serving.messages.request import GenerationRequest, SamplingParams
from hotdraft.serving.models.attention import ATTENTION, register_attention
from hotdraft.serving.proposers.text_memory import TextMemory
from hotdraft.serving.updates.hot_swap import HotSwapper
from hotdraft.training.drafts.hidden_state_init import new_hidden_state_draft
from tests.integration.adapters import write_adapter
from tests.integration.conftest import disturbed
from tests.integration.lossless.stepping import run, stage, swap
from tests.models import tiny_llama, tiny_tokenizer

VOCABULARY = 12
LENGTH = 4
SAMPLES = 4000
PLAIN = SamplingParams(max_tokens=LENGTH, temperature=0.8, ignore_eos=True)
PENALISED = replace(PLAIN, presence_penalty=0.5, frequency_penalty=-1.5, repetition_penalty=1.4)
"""Which makes an answer repeat itself."""
PROMPT = (1, 2, 3, 4)
BIASED = replace(PLAIN, logit_bias=((2, 1.5), (4, -100.0), (11, 0.7)))
FILTERED = replace(PLAIN, top_p=0.9)
ENDS = frozenset({1, 6})
"""Tokens that no answer is ended by, as each ignores them, and none begins with that has a least length."""
AT_LEAST = replace(PLAIN, min_tokens=2, repetition_penalty=1.4)
RANK = 4
KNOWN = torch.tensor([0, 2, 3, 5, 8, 10])
"""All that a trimmed draft knows."""
MAX_K = 3
COSTS = RoundCosts({64: [1.0, 1.05, 1.1, 1.15]}, {64: 0.15})


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("small")
    target = tiny_llama(layers=2, seed=1, vocab_size=VOCABULARY)
    for model, name in ((target, "target"), (disturbed(target), "draft")):
        model.save_pretrained(folder / name)
    return str(folder / "target"), str(folder / "draft")


@pytest.fixture(scope="module")
def hidden_state_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("states")
    target = tiny_llama(layers=2, seed=1, vocab_size=VOCABULARY)
    target.save_pretrained(folder / "target")
    draft = new_hidden_state_draft(target, PredistillConfig(hidden_states=[1, 2]))
    with torch.no_grad():
        draft.model.norm.weight.mul_(0.1)  # who knows nothing had better not be sure
    draft.save_pretrained(folder / "draft")
    return str(folder / "target"), str(folder / "draft")


def exact_marginals(target: str, params: SamplingParams) -> torch.Tensor:
    """[LENGTH, V]: the probability of each token at each output position, summed over all that may precede it."""
    model = load_causal_lm(target)
    contexts, weights = torch.tensor([PROMPT]), torch.ones(1, dtype=torch.float64)
    marginals = []
    for length in range(LENGTH):
        with torch.no_grad():
            logits = model(contexts).logits[:, -1].double()
        for token, bias in params.logit_bias:
            logits[:, token] += bias
        came, less = one_hot(contexts, VOCABULARY).sum(1) > 0, params.repetition_penalty
        logits = torch.where(came, torch.where(logits > 0, logits / less, logits * less), logits)
        if length < params.min_tokens:
            logits[:, list(ENDS)] = -torch.inf
        counts = one_hot(contexts[:, len(PROMPT) :], VOCABULARY).sum(1)
        logits -= params.presence_penalty * (counts > 0) + params.frequency_penalty * counts
        probs = nucleus((logits / params.temperature).softmax(-1), params.top_p)
        joint = weights[:, None] * probs
        marginals.append(joint.sum(0))
        tokens = torch.arange(VOCABULARY).repeat(len(contexts))[:, None]
        contexts = torch.cat([contexts.repeat_interleave(VOCABULARY, 0), tokens], 1)
        weights = joint.flatten()
    return torch.stack(marginals)


def nucleus(probs: torch.Tensor, top_p: float) -> torch.Tensor:
    """The fewest likeliest tokens that hold `top_p` of probs [N, V], normalised."""
    ordered, token_ids = probs.sort(-1, descending=True)
    kept = torch.zeros_like(probs).scatter(-1, token_ids, ordered * (ordered.cumsum(-1) - ordered < top_p))
    return kept / kept.sum(-1, keepdim=True)


def frequencies(
    target: str,
    draft: str,
    k: int | Literal["auto"],
    trimmed: bool,
    adapters: list[Path],
    params: SamplingParams,
    seeded: bool,
    guessing: bool,
    first_seed: int,
) -> tuple[torch.Tensor, float]:
    """How often each token came at each position, [LENGTH, V], and the acceptance rate; a swap every 20 turns."""
    register_attention()
    decoder = build_decoder(
        load_causal_lm(target, attn_implementation=ATTENTION),
        load_causal_lm(draft, attn_implementation=ATTENTION),
        num_slots=64,
        max_model_len=16,
        max_k=MAX_K,
        log_top_k=4,
        draft_vocabulary=KNOWN if trimmed else None,
    )
    guesses = Guessing(TextMemory(1 << 16), MAX_K) if guessing else None
    engine = Engine(decoder, tiny_tokenizer(), k=k, max_queue=SAMPLES, guessing=guesses, eos_ids=ENDS)
    engine.k_choice.adaptive = AnyMixture(COSTS, MAX_K) if guessing else Unlearning(COSTS, MAX_K)
    swapper = HotSwapper(engine, fingerprint(draft), KNOWN if trimmed else None)
    drafts = stage(engine, swapper, [None, *adapters])
    seeds = range(first_seed, first_seed + SAMPLES)
    each = [replace(params, seed=seed) if seeded else params for seed in seeds]
    requests = [GenerationRequest(f"r{number}", PROMPT, params) for number, params in enumerate(each)]
    random.seed(first_seed)  # of which the engine makes seeds for requests without
    counts = Counts()
    engine.listeners.append(counts)

    def swap_now_and_then(step: int) -> None:
        if step % 20 == 0:
            swap(engine, swapper, drafts[(swapper.live_version + 1) % len(drafts)])

    outputs = torch.tensor(run(engine, requests, swap_now_and_then))
    assert counts.swaps >= 5
    if guessing:
        assert counts.guessed > 500
        assert 0.05 < counts.right / counts.guessed < 0.95
        assert counts.drafted - counts.guessed > 500
    found = torch.stack([outputs[:, position].bincount(minlength=VOCABULARY) for position in range(LENGTH)])
    return found, counts.accepted / max(counts.drafted, 1)


class Unlearning(ProposalChoice):
    """Chooses k whatever rounds take, so that every run is the same."""

    def observe(self, *_: object) -> None: ...


class AnyMixture(Unlearning):
    """Lets each row propose any mixture of what it could: nothing, guesses, drafts, drafts behind guesses."""

    def __init__(self, costs: RoundCosts, max_k: int) -> None:
        super().__init__(costs, max_k)
        self._random = random.Random(3)

    def choose(self, rows: Sequence[Outlook], setting: RoundSetting | None = None) -> Choice:
        most = [min(MAX_K, row.most) for row in rows]
        guessed = [self._random.randint(0, min(len(row.guessed), up)) for row, up in zip(rows, most, strict=True)]
        return Choice(guessed, [self._random.randint(0, up - own) for own, up in zip(guessed, most, strict=True)])


class Counts:
    """An `EngineListener`."""

    def __init__(self) -> None:
        self.swaps = self.drafted = self.accepted = self.guessed = self.right = 0

    def on_round(self, stats: RoundStats) -> None:
        self.drafted += stats.proposed_tokens
        self.accepted += stats.accepted_tokens
        self.guessed += stats.guessed_tokens
        self.right += stats.accepted_guesses

    def on_finish(self, *_: object) -> None: ...

    def on_swap(self, event: object) -> None:
        self.swaps += 1


CASES = [
    (0, False, PLAIN, False, False),
    (3, False, PLAIN, False, False),
    ("auto", True, PLAIN, False, False),
    (0, False, PENALISED, True, False),
    (3, False, PENALISED, False, False),
    (3, True, PENALISED, False, False),
    (3, True, PENALISED, True, False),
    ("auto", False, PLAIN, False, True),
    ("auto", True, PLAIN, False, True),
    ("auto", True, PENALISED, False, True),
    ("auto", False, PLAIN, True, True),
    ("auto", True, FILTERED, False, True),
    ("auto", True, BIASED, False, True),
    (3, False, BIASED, True, False),
    (3, False, AT_LEAST, False, False),
    ("auto", True, AT_LEAST, False, True),
    (3, True, AT_LEAST, True, False),
]
READING_STATES = [
    (3, False, PLAIN, False, False),
    (3, True, PENALISED, False, False),
    ("auto", True, FILTERED, False, True),
]


@pytest.mark.parametrize(
    ("drafts", "k", "trimmed", "params", "seeded", "guessing"),
    [*(("pair", *case) for case in CASES), *(("hidden_state_pair", *case) for case in READING_STATES)],
)
def test_tokens_come_as_often_as_the_target_says(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    drafts: str,
    k: int | Literal["auto"],
    trimmed: bool,
    params: SamplingParams,
    seeded: bool,
    guessing: bool,
) -> None:
    target, draft = request.getfixturevalue(drafts)
    adapters = [write_adapter(tmp_path / f"a{seed}", draft, seed=seed, rank=RANK) for seed in (1, 2)]
    found, rate = frequencies(
        target, draft, k, trimmed, adapters, params, seeded, guessing, first_seed=30_000 if k else 0
    )
    assert k == 0 or 0.2 < rate < 0.9, "a draft that is never or always right shows little"
    for position, (observed, exact) in enumerate(zip(found, exact_marginals(target, params), strict=True)):
        expected = SAMPLES * exact.numpy()
        common = expected >= 5
        pooled = [observed.numpy()[~common].sum(), *observed.numpy()[common]]
        wanted = [expected[~common].sum(), *expected[common]]
        if wanted[0] < 1:  # nothing rare to speak of
            pooled, wanted = pooled[1:], [value * sum(pooled[1:]) / sum(wanted[1:]) for value in wanted[1:]]
        assert len(wanted) >= 4
        pvalue = chisquare(pooled, wanted).pvalue
        assert pvalue > 1e-4, f"position {position}: p = {pvalue:.2g}"
