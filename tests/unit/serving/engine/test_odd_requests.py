"""Requests at the edge of what is allowed, beside ordinary ones, which notice nothing."""

from pathlib import Path
from typing import Any

import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.engine.load import build_engine
from hotdraft.serving.messages.request import GenerationRequest, ParameterError, SamplingParams
from tests.models import save, tiny_llama
from tests.unit.serving.clients import Client, ask, greedy, request

LIMIT = 61
"""With two drafted tokens, a slot has not one position more than it needs."""
ODD: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "one token in, one out": ((5,), {"max_tokens": 1}),
    "one token in, all others out": ((5,), {"max_tokens": LIMIT - 1}),
    "all tokens but one in": ((5,) * (LIMIT - 1), {"max_tokens": 1}),
    "hot, at the limit": ((5,) * 30, {"max_tokens": LIMIT - 30, "temperature": 100.0, "seed": 1}),
    "least of all tokens": ((5, 6), {"max_tokens": 9, "temperature": 1.0, "top_k": 1, "min_p": 0.99}),
    "nearly no mass": ((5, 6), {"max_tokens": 9, "temperature": 1.0, "top_p": 1e-9}),
    "all likelihoods": ((5,), {"max_tokens": 9, "logprobs": 8, "prompt_logprobs": 8}),
    "penalised for all it says": ((5,), {"max_tokens": 50, "presence_penalty": 2.0, "frequency_penalty": 2.0}),
    "rewarded for all it says": ((5,), {"max_tokens": 50, "temperature": 1.0, "frequency_penalty": -2.0}),
    "the largest seed": ((5,), {"max_tokens": 9, "temperature": 1.0, "seed": 2**63 - 1}),
    "the smallest seed": ((5,), {"max_tokens": 9, "temperature": 1.0, "seed": -(2**63)}),
    "any first token ends it": ((5, 6), {"max_tokens": 9, "ignore_eos": False}),
    "any first text ends it": ((5, 6), {"max_tokens": 50, "stop": tuple(map(chr, range(32, 127)))}),
}


def finished(engine: Engine, wanted: GenerationRequest) -> Client:
    client = ask(engine, wanted)
    for _ in range(wanted.params.max_tokens + 2):
        engine.step()
    assert client.done.is_set()
    return client


@pytest.mark.slow
@pytest.mark.parametrize("k", [0, 1, 2])
@pytest.mark.parametrize("kind", ODD)
def test_an_odd_request_ends_well_and_alone(config: HotdraftConfig, tiny_target: str, kind: str, k: int) -> None:
    prompt, params = ODD[kind]
    changes = config.engine.model_copy(update={"max_model_len": LIMIT, "k": 2})
    engine = build_engine(config.model_copy(update={"engine": changes}), None)
    assert engine.decoder.slots.max_length == LIMIT + 3
    engine.k = k
    engine.eos_ids = frozenset(range(257))
    ordinary = [((1, 2, 3), 40), (tuple(range(9, 49)), 20)]
    clients = [ask(engine, request(f"r{len(p)}", p, max_tokens=length)) for p, length in ordinary]
    odd = ask(engine, request("odd", prompt, **params))
    for _ in range(200):
        engine.step()
    assert odd.deltas[-1].finish_reason in ("stop", "length")
    assert odd.deltas[-1].stats.accepted_tokens <= odd.deltas[-1].stats.completion_tokens
    assert len(odd.ids) == 1 if kind.startswith("any first token") else len(odd.ids) <= params["max_tokens"]
    for (known, length), client in zip(ordinary, clients, strict=True):
        assert client.ids == greedy(tiny_target, known, length)
    assert not any(engine.failures.values())
    assert engine.is_idle


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_an_ordinary_token_that_ends_answers_is_no_part_of_them(config: HotdraftConfig, ignore_eos: bool) -> None:
    engine = build_engine(config, None)
    first = ask(engine, request("before", max_tokens=1))
    engine.step()
    engine.step()
    engine.eos_ids = frozenset(first.ids)
    client = ask(engine, request("r", max_tokens=1, ignore_eos=ignore_eos))
    engine.step()
    engine.step()
    assert client.ids == first.ids
    assert client.text == (first.text if ignore_eos else "") != (first.text if not ignore_eos else "")


@pytest.mark.parametrize("k", [0, 2])
def test_any_token_may_end_an_answer_wherever_in_a_round_it_comes(config: HotdraftConfig, k: int) -> None:
    engine = build_engine(config.model_copy(update={"draft": config.target}), None)
    engine.k = k
    whole = finished(engine, request("whole", max_tokens=30))
    places = {token: whole.ids.index(token) for token in whole.ids}
    assert {place % 3 for place in places.values()} == {0, 1, 2}
    for token, place in places.items():
        cut = finished(engine, request(f"until {token}", max_tokens=30, stop_token_ids=[200, token]))
        assert cut.ids == whole.ids[: place + 1]
        assert (cut.deltas[-1].finish_reason, cut.deltas[-1].stop_reason) == ("stop", token)
        assert cut.deltas[-1].stats.completion_tokens == place + 1
        assert cut.deltas[-1].stats.accepted_tokens <= place + 1
        assert cut.text == (finished(engine, request(f"before {token}", max_tokens=place)).text if place else "")


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_the_end_of_sequence_token_is_a_reason_only_where_it_is_ignored_and_asked_for(
    config: HotdraftConfig, ignore_eos: bool
) -> None:
    engine = build_engine(config, None)
    wanted = request("r", logit_bias={256: 100}, ignore_eos=ignore_eos, stop_token_ids=[256])
    last = finished(engine, wanted).deltas[-1]
    assert (last.token_ids, last.finish_reason) == ((256,), "stop")
    assert last.stop_reason == (256 if ignore_eos else None)


@pytest.mark.parametrize("k", [0, 2])
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_nothing_ends_an_answer_before_it_has_its_least_tokens(
    config: HotdraftConfig, tiny_target: str, ignore_eos: bool, k: int
) -> None:
    """The model would have each token be one that ends answers."""
    engine = build_engine(config, None)
    engine.k = k
    wish = {"logit_bias": {256: 100, 65: 50}, "ignore_eos": ignore_eos, "stop_token_ids": [65]}
    assert finished(engine, request("at once", **wish)).ids == ([256] * 12 if ignore_eos else [256])
    expected = [*greedy(tiny_target, (1, 2, 3), 5), 256]
    assert not {65, 256} & set(expected[:5])
    assert finished(engine, request("later", min_tokens=5, **wish)).ids == expected + [256] * (
        6 if ignore_eos else 0
    )
    assert finished(engine, request("at the end", min_tokens=5, max_tokens=5, **wish)).ids == expected[:5]
    assert not any(engine.failures.values())


def test_an_end_of_text_that_no_model_knows_is_none(config: HotdraftConfig, tmp_path: Path) -> None:
    target = tiny_llama(layers=1, seed=1)
    target.generation_config.eos_token_id = [255, 300]
    engine = build_engine(config.model_copy(update={"target": save(target, tmp_path), "draft": None}), None)
    assert engine.eos_ids == {255, 256}
    assert len(finished(engine, request("r", min_tokens=5)).ids) == 12


def test_an_answer_that_has_its_least_tokens_is_judged_as_others_are_again(config: HotdraftConfig) -> None:
    engine = build_engine(config, None)
    engine.k = 0
    ask(engine, request("r", min_tokens=3))
    for tokens in range(1, 6):
        engine.step()
        assert engine.scheduler.plan().sampling.is_greedy == (tokens >= 3)


@pytest.mark.parametrize("least", [-1, 17])
def test_the_least_tokens_are_no_more_than_the_most(least: int) -> None:
    with pytest.raises(ParameterError, match=f"min_tokens must be from 0 to max_tokens, 16, not {least}"):
        SamplingParams(min_tokens=least)


@pytest.mark.parametrize("stops", [5, [-1], ["a"], [True], [1.0], "5"])
def test_what_is_no_list_of_token_ids_stops_nothing(stops: object) -> None:
    with pytest.raises(ParameterError, match="stop_token_ids must be a list of token ids, from 0, not "):
        SamplingParams(stop_token_ids=stops)  # type: ignore[arg-type]


def test_few_tokens_end_an_answer_each_of_them_once_and_known_to_the_models(config: HotdraftConfig) -> None:
    assert SamplingParams(stop_token_ids=[7, 5, 7]).stop_token_ids == (7, 5)
    with pytest.raises(ParameterError, match="stop_token_ids must be at most 128 tokens, not 129"):
        SamplingParams(stop_token_ids=list(range(129)))
    with pytest.raises(ParameterError, match=r"stop_token_ids has token ids outside 0\.\.256"):
        ask(build_engine(config, None), request("r", stop_token_ids=[5, 257]))


def test_a_seed_that_no_tensor_holds_is_refused() -> None:
    for seed in (2**63, -(2**63) - 1):
        with pytest.raises(ValueError, match="seed must be a 64-bit integer"):
            SamplingParams(seed=seed)


@pytest.mark.parametrize("field", ["max_tokens", "min_tokens", "top_k", "seed", "logprobs", "prompt_logprobs"])
@pytest.mark.parametrize("number", [2.5, True, "2"])
def test_what_is_no_whole_number_is_refused_by_name_before_a_round(field: str, number: object) -> None:
    with pytest.raises(ParameterError, match=f"{field}.*whole number"):
        SamplingParams(**{field: number})  # type: ignore[arg-type]


def test_parameters_may_be_written_as_elsewhere(config: HotdraftConfig) -> None:
    engine = build_engine(config, None)
    clients = [
        ask(engine, request("ours", top_k=0, stop=(), logit_bias=((65, 100.0),))),
        ask(engine, request("vllm's", top_k=-1, stop=None, logit_bias={65: 100})),
    ]
    for _ in range(30):
        engine.step()
    assert clients[0].ids == clients[1].ids == [65] * 12
    with pytest.raises(ParameterError, match="logit_bias must be of token ids from 0, each with -100 to 100"):
        SamplingParams(logit_bias={5: 101})
