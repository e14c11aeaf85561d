"""Prompts are read in chunks, of which only what is read counts, and requests that run go on between them."""

from typing import Any

import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.serving.decoding.choice import ProposalChoice
from hotdraft.serving.decoding.costs import RoundCosts
from hotdraft.serving.decoding.decoder import SpeculativeDecoder
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.engine.load import build_engine
from hotdraft.serving.models.native_runner import NativeRunner
from hotdraft.serving.proposers.draft_model import MAX_MISSED
from tests.unit.serving.clients import ask, greedy, request

CHUNK = 16


def build(config: HotdraftConfig, **changes: Any) -> Engine:
    """Not started: the test takes the steps."""
    return build_engine(config.model_copy(update={"engine": config.engine.model_copy(update=changes)}), None)


def watch(decoder: SpeculativeDecoder, name: str) -> list[int]:
    """How many tokens a row each forward of a model is fed, from now on."""
    runner, fed = getattr(decoder, name).runner, []
    forward = runner.forward
    runner.forward = lambda window, ids, keep: fed.append(ids.shape[1]) or forward(window, ids, keep)
    if isinstance(runner, NativeRunner):
        read = runner.read
        runner.read = lambda ids, *told: fed.append(ids.shape[1]) or read(ids, *told)
    return fed


def test_prompts_are_not_read_in_scraps(config: HotdraftConfig) -> None:
    """A chunk is 16 tokens: what it leaves is for prompts that fit whole."""
    engine = build(config)
    fed = watch(engine.decoder, "target")
    for n, length in enumerate((41, 13, 6)):
        ask(engine, request(f"r{n}", tuple(range(1, 1 + length)), max_tokens=30))
    for expected, running in (([16], 0), ([16], 0), ([8, 3], 1), ([12, 3], 2), ([5, 3], 3)):
        fed.clear()
        engine.step()
        assert fed == expected
        assert len(engine.scheduler.running) == running


@pytest.mark.parametrize("with_logprobs", [False, True])
@pytest.mark.parametrize("name", ["target", "proposer"])
def test_no_forward_is_fed_more_than_a_chunk(
    config: HotdraftConfig, tiny_target: str, name: str, with_logprobs: bool
) -> None:
    """Neither on an idle server, nor with company, nor where the draft has missed a hundred tokens."""
    engine = build(config)
    fed = watch(engine.decoder, name)
    prompt = tuple(range(1, 121))
    logprobs = 1 if with_logprobs else None
    alone = ask(engine, request("alone", prompt, max_tokens=8, prompt_logprobs=logprobs))
    while not alone.done.is_set():
        engine.step()
    engine.k = 0
    others = [ask(engine, request(f"r{n}", (*range(5 + n, 105),), max_tokens=20 + n)) for n in range(3)]
    while len(engine.scheduler.running) < 3:
        engine.step()
    engine.k = 2
    while not all(client.done.is_set() for client in others):
        engine.step()
    assert max(fed) <= max(CHUNK, MAX_MISSED + 2 if name == "proposer" else 0)
    assert alone.ids == greedy(tiny_target, prompt, 8)
    for n, client in enumerate(others):
        assert client.ids == greedy(tiny_target, tuple(range(5 + n, 105)), 20 + n)


def test_what_was_read_before_is_not_charged(config: HotdraftConfig, tiny_target: str) -> None:
    """Of three prompts of a hundred tokens all but the last few are known: they are admitted in one step."""
    engine = build(config)
    first = ask(engine, request("first", tuple(range(1, 101)), max_tokens=2))
    while not first.done.is_set():
        engine.step()
    fed = watch(engine.decoder, "target")
    prompts = [(*range(1, 100), n, n) for n in (7, 8, 9)]
    clients = [ask(engine, request(f"r{n}", prompt, max_tokens=9)) for n, prompt in enumerate(prompts)]
    engine.step()
    assert engine.num_running == 3
    assert fed == [1, 1, 1, 3]
    while not all(client.done.is_set() for client in clients):
        engine.step()
    for prompt, client in zip(prompts, clients, strict=True):
        assert client.ids == greedy(tiny_target, prompt, 9)


def test_a_draft_that_has_to_read_what_the_target_knows_is_charged_for_it(config: HotdraftConfig) -> None:
    engine = build(config, k=0)
    first = ask(engine, request("first", tuple(range(1, 101)), max_tokens=2))
    while not first.done.is_set():
        engine.step()
    assert engine.decoder.proposer is not None
    engine.decoder.max_k = engine.k = 2
    fed = watch(engine.decoder, "proposer")
    ask(engine, request("same", tuple(range(1, 101)), max_tokens=9))
    engine.step()
    assert fed == [CHUNK]
    assert engine.scheduler.prefilling is not None


@pytest.mark.parametrize("how", [2, "auto"])
def test_requests_go_on_while_the_draft_catches_up(config: HotdraftConfig, tiny_target: str, how: Any) -> None:
    """It is 97 tokens behind: three chunks of what its first step may read, and a round after each."""
    engine = build(config, k=2)
    engine.k = 0
    prompt = tuple(range(1, 101))
    client = ask(engine, request("r", prompt, max_tokens=20))
    while not engine.scheduler.running:
        engine.step()
    length = engine.decoder.slots.lengths[0]
    # drafting pays, as costs are, but auto might change its mind in any round
    engine.k_choice.adaptive = ProposalChoice(RoundCosts({1: [1.0, 1.0, 1.0]}, {1: 0.1}), 2)
    engine.k = how
    draft, target = watch(engine.decoder, "proposer"), watch(engine.decoder, "target")
    for turn in range(1, 3):
        engine.step()
        assert draft == [MAX_MISSED] * turn
        assert target == [1] * turn
        assert engine.decoder.slots.lengths[0] == length + turn
    engine.step()
    assert draft[2] == MAX_MISSED
    assert target[2] == 3 if how == 2 else target[2] > 1
    while not client.done.is_set():
        engine.step()
    assert client.ids == greedy(tiny_target, prompt, 20)
