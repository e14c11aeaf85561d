"""A real pair at a temperature: while the draft is swapped again and again, the text is as the target's own."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from scipy.stats import chi2_contingency

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import fingerprint, load_causal_lm, load_tokenizer
from hotdraft.pipeline.models.names import ModelError, resolve
from hotdraft.serving.engine.load import build_engine, draft_ranking
from hotdraft.serving.messages.events import RoundStats
from hotdraft.serving.messages.request import GenerationRequest, SamplingParams
from hotdraft.serving.updates.hot_swap import HotSwapper
from tests.integration.adapters import write_adapter
from tests.integration.lossless.stepping import run, stage, swap

PROMPT = "My dog is"
"""After which temperatures differ much: p < 1e-10 for 1.0 against `TEMPERATURE`."""
LENGTH = 3
SAMPLES = 300
TEMPERATURE = 0.8
SLOTS = 16
RANK = 4
STEPS_BETWEEN_SWAPS = 5
RARE = 8
"""Tokens that came less often, in both samples together, count as one."""
DOUBT = 1e-4

Tally = list[Counter[int]]
"""How often each token came, by output position."""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> HotdraftConfig:
    try:
        resolve("smollm2")
    except ModelError as error:
        pytest.skip(str(error))
    return HotdraftConfig(
        target="smollm2",
        draft="smollm2-draft",
        device="cpu",
        run_dir=tmp_path_factory.mktemp("swaps"),
        engine={
            "k": 2,
            "draft_vocab_size": 8192,
            "num_slots": SLOTS,
            "max_model_len": 64,
            "max_queue": SAMPLES,
            "threads": 1,
        },
    )


class Rounds:
    """An `EngineListener` that counts by draft version."""

    def __init__(self) -> None:
        self.drafted: Counter[int] = Counter()
        self.accepted: Counter[int] = Counter()

    def on_round(self, stats: RoundStats) -> None:
        self.drafted[stats.draft_version] += stats.proposed_tokens
        self.accepted[stats.draft_version] += stats.accepted_tokens

    def on_finish(self, *_: object) -> None: ...

    def on_swap(self, event: object) -> None: ...


def requests(config: HotdraftConfig) -> list[GenerationRequest]:
    prompt = tuple(load_tokenizer(config.target)(PROMPT)["input_ids"])
    return [
        GenerationRequest(
            f"r{seed}",
            prompt,
            SamplingParams(max_tokens=LENGTH, temperature=TEMPERATURE, seed=seed, ignore_eos=True),
        )
        for seed in range(SAMPLES)
    ]


def tally(outputs: list[list[int]]) -> Tally:
    return [Counter(tokens) for tokens in zip(*outputs, strict=True)]


def swapped(config: HotdraftConfig, adapters: list[Path]) -> tuple[Tally, Rounds, int]:
    """Of speculation under which the versions take turns: tokens, rounds, and swaps that requests lived through."""
    assert config.draft is not None
    engine = build_engine(config, None)
    swapper = HotSwapper(engine, fingerprint(config.draft), draft_ranking(config))
    drafts = stage(engine, swapper, [None, *adapters])
    engine.listeners.append(rounds := Rounds())
    swaps = 0

    def swap_now_and_then(step: int) -> None:
        nonlocal swaps
        if step % STEPS_BETWEEN_SWAPS == 0 and engine.num_running:
            swap(engine, swapper, drafts[(swapper.live_version + 1) % len(drafts)])
            swaps += engine.num_running > 0

    return tally(run(engine, requests(config), swap_now_and_then)), rounds, swaps


def pvalue(one: Counter[int], other: Counter[int]) -> float:
    """Of a chi-square test that both were drawn from one distribution."""
    both = one + other
    common = [token for token, count in both.items() if count >= RARE]
    assert len(common) >= 4, "a position with one likely token shows little"
    table = [[sample[token] for token in common] for sample in (one, other)]
    rare = [sample.total() - sum(row) for sample, row in zip((one, other), table, strict=True)]
    if any(rare):
        table = [[*row, count] for row, count in zip(table, rare, strict=True)]
    return float(chi2_contingency(table).pvalue)


@torch.inference_mode()
def sampled(config: HotdraftConfig, temperature: float, length: int) -> Tally:
    """As many answers of the target, drawn without an engine; what begins alike is read once."""
    model, generator = load_causal_lm(config.target), torch.Generator().manual_seed(0)
    prompt = torch.tensor([load_tokenizer(config.target)(PROMPT)["input_ids"]])
    ids = prompt.expand(SAMPLES, -1)
    for _ in range(length):
        read, place = ids.unique(dim=0, return_inverse=True)
        probs = (model(read, logits_to_keep=1).logits[:, -1] / temperature).softmax(-1)
        ids = torch.cat([ids, probs[place].multinomial(1, generator=generator)], 1)
    return tally(ids[:, prompt.shape[1] :].tolist())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_swaps_under_way_leave_no_trace(config: HotdraftConfig, tmp_path: Path) -> None:
    assert config.draft is not None
    adapters = [
        write_adapter(tmp_path / f"a{seed}", config.draft, seed=seed, rank=RANK, scale=scale)
        for seed, scale in ((1, 0.05), (2, 0.1), (3, 0.1))
    ]
    expected = sampled(config, TEMPERATURE, LENGTH)
    found, rounds, swaps = swapped(config, adapters)
    rates = {version: rounds.accepted[version] / drafted for version, drafted in sorted(rounds.drafted.items())}
    pvalues = [pvalue(*pair) for pair in zip(found, expected, strict=True)]
    print(f"{swaps} swaps; acceptance by version {rates}; p = {pvalues}")

    assert swaps >= 5
    assert set(rates) == {0, 1, 2, 3}
    assert 0 < min(rates.values()) < max(rates.values()) < 1
    assert min(pvalues) > DOUBT
    assert pvalue(found[0], sampled(config, 1.0, 1)[0]) < DOUBT, "the test can tell another distribution"
