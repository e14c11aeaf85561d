"""A seed's text is the same for every k, draft, head and batch, up to rounding: here none, in float32."""

from dataclasses import replace

import pytest
import torch

from hotdraft.serving.messages.request import SamplingParams
from hotdraft.serving.proposers.plan import ProposalPlan
from tests.unit.serving.decoders import GREEDY, PROMPTS, batch, greedy_reference, make_decoder, run, start

SEEDED = {
    "plain": SamplingParams(temperature=0.9, seed=1),
    "filtered": SamplingParams(temperature=1.3, top_k=40, top_p=0.9, min_p=0.01, seed=1),
    "penalised": SamplingParams(temperature=0.9, presence_penalty=0.7, frequency_penalty=0.4, seed=1),
}
SEEDS = [7, 8, 7 + 2**40, 10]
KNOWN = torch.arange(0, 257, 2)


@pytest.fixture(scope="module")
def texts(tiny_target: str) -> dict[str, list[list[int]]]:
    """By plain decoding, each request alone."""
    decoder = make_decoder(tiny_target, None)
    found: dict[str, list[list[int]]] = {}
    for name, params in SEEDED.items():
        found[name] = []
        for prompt, seed in zip(PROMPTS, SEEDS, strict=True):
            start(decoder, [prompt])
            found[name] += run(decoder, [0], batch([params], [seed]), 1)
    return found


@pytest.mark.parametrize("ks", [[0], [1], [2], [4, 0, 1, 3]])
@pytest.mark.parametrize("name", SEEDED)
@pytest.mark.parametrize(("draft", "known"), [("other", None), ("itself", None), ("itself", KNOWN)])
def test_text_depends_on_neither_k_nor_draft(
    tiny_target: str,
    tiny_draft: str,
    texts: dict[str, list[list[int]]],
    draft: str,
    known: torch.Tensor | None,
    name: str,
    ks: list[int],
) -> None:
    decoder = make_decoder(tiny_target, tiny_target if draft == "itself" else tiny_draft, draft_vocabulary=known)
    start(decoder, PROMPTS)
    assert run(decoder, ks, batch([SEEDED[name]] * 4, SEEDS), 4) == texts[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEDED)
def test_text_depends_on_no_companion(tiny_target: str, texts: dict[str, list[list[int]]], name: str) -> None:
    others = [
        SamplingParams(temperature=1.0),
        GREEDY,
        SamplingParams(temperature=0.8, top_p=0.7),
        SEEDED["filtered"],
    ]
    for row in range(4):
        decoder = make_decoder(tiny_target, tiny_target, draft_vocabulary=KNOWN)
        start(decoder, PROMPTS)
        mixed = [*others[:row], SEEDED[name], *others[row + 1 :]]
        outputs = run(decoder, [3, 1], batch(mixed, SEEDS), 4)
        assert outputs[row] == texts[name][row]
        if row != 1:
            assert outputs[1] == greedy_reference(tiny_target, PROMPTS[1:2])[0]


def test_a_draft_that_is_the_target_is_always_right(tiny_target: str) -> None:
    decoder = make_decoder(tiny_target, tiny_target)
    start(decoder, PROMPTS)
    for _ in range(4):
        outcome = decoder.round(ProposalPlan.uniform(4, 4), batch([*SEEDED.values(), GREEDY], SEEDS), log=False)
        assert outcome.num_accepted.tolist() == [4] * 4


def test_other_seeds_give_other_text(tiny_target: str, texts: dict[str, list[list[int]]]) -> None:
    decoder = make_decoder(tiny_target, None)
    start(decoder, PROMPTS)
    found = run(decoder, [0], batch([SEEDED["plain"]] * 4, [seed + 1 for seed in SEEDS]), 4)
    assert all(one != other for one, other in zip(found, texts["plain"], strict=True))


@pytest.mark.slow
def test_without_a_seed_more_is_accepted(tiny_target: str, tiny_draft: str) -> None:
    """Sharing noise costs acceptance: that is why only who asks for it pays."""
    rates = []
    for seed in (None, 1):
        decoder = make_decoder(tiny_target, tiny_draft)
        start(decoder, PROMPTS)
        params = replace(SEEDED["plain"], temperature=3.0, seed=seed)
        accepted = 0
        for turn in range(300):
            for row, prompt in enumerate(PROMPTS):
                decoder.rewind(row, len(prompt))
            accepted += int(
                decoder.round(
                    ProposalPlan.uniform(4, 1), batch([params] * 4, range(4 * turn, 4 * turn + 4)), log=False
                ).num_accepted.sum()
            )
        rates.append(accepted / 1200)
    assert rates[1] < rates[0]
