"""Log-probs are those of the target's own distribution, of every token of prompt and answer, wherever it ranks."""

from typing import Any

import pytest
import torch

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import load_causal_lm
from hotdraft.pipeline.replay.buffer import ReplayBuffer, sample_from_row
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.engine.load import build_engine
from hotdraft.serving.messages.request import TokenLogprob
from tests.unit.serving.clients import Client, ask, greedy, request

HOT = {"temperature": 3.0, "seed": 5, "presence_penalty": 1.0, "frequency_penalty": 0.5}
"""Draws tokens from far down the target's ranking."""
LONG = tuple(range(10, 55))


@pytest.fixture
def stepped(config: HotdraftConfig) -> Engine:
    """Not started: `finish` takes its steps. Nothing is recorded. It tells 8 log-probs a token."""
    return build_engine(config, None)


def finish(engine: Engine, *clients: Client) -> None:
    while not all(client.done.is_set() for client in clients):
        engine.step()


@torch.inference_mode()
def expected(target: str, context: tuple[int, ...], token_ids: list[int], number: int) -> list[TokenLogprob]:
    """Of `token_ids` after `context`."""
    logits = load_causal_lm(target)(torch.tensor([[*context, *token_ids]])).logits[0, len(context) - 1 : -1]
    logprobs = logits.float().log_softmax(-1)
    top = logprobs.topk(number)
    return [
        TokenLogprob(
            token,
            logprobs[position, token].item(),
            tuple(zip(top.indices[position].tolist(), top.values[position].tolist(), strict=True)),
        )
        for position, token in enumerate(token_ids)
    ]


def check(found: list[TokenLogprob], wanted: list[TokenLogprob]) -> None:
    assert [entry.token_id for entry in found] == [entry.token_id for entry in wanted]
    for entry, other in zip(found, wanted, strict=True):
        assert entry.logprob == pytest.approx(other.logprob, abs=2e-5)
        assert [token for token, _ in entry.top] == [token for token, _ in other.top]
        assert [value for _, value in entry.top] == pytest.approx([value for _, value in other.top], abs=2e-5)


def of_answer(client: Client) -> list[TokenLogprob]:
    """Of all deltas, each of which has as many as tokens."""
    for delta in client.deltas:
        assert delta.logprobs is not None
        assert tuple(entry.token_id for entry in delta.logprobs) == delta.token_ids
    return [entry for delta in client.deltas for entry in delta.logprobs or ()]


@pytest.mark.parametrize("k", [0, 2])
@pytest.mark.parametrize("params", [{}, HOT], ids=["greedy", "hot and penalised"])
def test_of_the_answer(stepped: Engine, tiny_target: str, k: int, params: dict[str, Any]) -> None:
    stepped.k = k
    wanted = [request(f"r{number}", LONG[: 3 + number], logprobs=number, **params) for number in (0, 2, 8)]
    clients = [ask(stepped, one) for one in wanted]
    finish(stepped, *clients)
    for one, client in zip(wanted, clients, strict=True):
        assert len(client.ids) == 12
        number = one.params.logprobs
        check(of_answer(client), expected(tiny_target, one.prompt_ids, client.ids, number))
        assert all(len(entry.top) == number for entry in of_answer(client))
    if params:
        outside = [entry for entry in of_answer(clients[2]) if entry.token_id not in dict(entry.top)]
        assert len(outside) > 3, "tokens outside the likeliest have theirs too"


def test_only_who_asks_is_told(stepped: Engine) -> None:
    asked, other = ask(stepped, request("asked", logprobs=1)), ask(stepped, request("other"))
    finish(stepped, asked, other)
    assert all(delta.logprobs is not None for delta in asked.deltas)
    assert all(delta.logprobs is None and delta.prompt_logprobs is None for delta in other.deltas)
    assert all(delta.prompt_logprobs is None for delta in asked.deltas)
    assert asked.ids == other.ids


def test_what_a_stop_string_drops_has_none(stepped: Engine) -> None:
    whole = ask(stepped, request("whole", max_tokens=40))
    finish(stepped, whole)
    cut = ask(stepped, request("cut", max_tokens=40, stop=(whole.text[6:9],), logprobs=0))
    finish(stepped, cut)
    assert cut.deltas[-1].finish_reason == "stop"
    assert [entry.token_id for entry in of_answer(cut)] == cut.ids == whole.ids[: len(cut.ids)]


@pytest.mark.parametrize("prompt", [(7,), (7, 8), LONG[:17], LONG], ids=len)
def test_of_the_prompt(stepped: Engine, tiny_target: str, prompt: tuple[int, ...]) -> None:
    """Also where another slot has read the beginning; who comes later takes over what was read for this."""
    finish(stepped, ask(stepped, request("before", (*prompt, 1))))
    clients = [
        ask(stepped, request(f"r{number}", prompt, max_tokens=3, prompt_logprobs=number)) for number in (0, 3)
    ]
    finish(stepped, *clients)
    for number, client in zip((0, 3), clients, strict=True):
        first, *later = client.deltas
        assert first.prompt_logprobs is not None
        assert first.prompt_logprobs[0] == TokenLogprob(prompt[0], None, ())
        check(list(first.prompt_logprobs[1:]), expected(tiny_target, prompt[:1], list(prompt[1:]), number))
        assert all(delta.prompt_logprobs is None for delta in later)
        assert all(delta.logprobs is None for delta in client.deltas)
        assert client.ids == greedy(tiny_target, prompt, 3)


def test_a_prompt_is_scored_in_chunks_and_read_again(stepped: Engine) -> None:
    read: list[tuple[int, int]] = []
    forward = stepped.decoder.target.runner.forward
    stepped.decoder.target.runner.forward = lambda window, ids, keep: (  # type: ignore[method-assign]
        read.append((ids.shape[1], keep)) or forward(window, ids, keep)
    )
    stepped.k = 0
    in_chunks = [(16, 16), (16, 16), (12, 12)]
    finish(stepped, ask(stepped, request("scored", LONG, max_tokens=1, prompt_logprobs=0)))
    assert read[:3] == in_chunks
    read.clear()
    finish(stepped, ask(stepped, request("not scored", LONG, max_tokens=1)))
    assert not [chunk for chunk in read if chunk[0] > 1], "all of the prompt was there"
    read.clear()
    finish(stepped, ask(stepped, request("again", LONG, max_tokens=1, prompt_logprobs=0)))
    assert read[:3] == in_chunks


def test_one_that_is_cancelled_before_its_prompt_was_read(stepped: Engine) -> None:
    client = ask(stepped, request("r", LONG, prompt_logprobs=1, logprobs=1))
    stepped.step()
    stepped.cancel("r")
    finish(stepped, client)
    (delta,) = client.deltas
    assert (delta.finish_reason, delta.logprobs, delta.prompt_logprobs) == ("cancelled", (), None)


@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs"])
def test_more_than_the_server_keeps_is_refused(stepped: Engine, field: str) -> None:
    assert stepped.max_logprobs == 8
    with pytest.raises(ValueError, match=rf"{field} must be at most 8 on this server, not 9"):
        ask(stepped, request("r", **{field: 9}))
    finish(stepped, ask(stepped, request("r", **{field: 8})))


def test_the_recorder_and_the_client_see_the_same(config: HotdraftConfig, buffer: ReplayBuffer) -> None:
    engine = build_engine(config, buffer)
    clients = [ask(engine, request(name, logprobs=8, **params)) for name, params in (("told", {}), ("hot", HOT))]
    plain = ask(engine, request("plain"))
    finish(engine, *clients, plain)
    assert engine.recorder is not None
    engine.recorder.close()
    samples = {row["request_id"]: sample_from_row(row) for row in buffer.load()}
    assert set(samples) == {"told", "plain"}, "a penalised answer teaches nothing"
    sample, told = samples["told"], of_answer(clients[0])
    assert sample.output_ids.tolist() == clients[0].ids
    assert sample.target_top_ids.tolist() == [[token for token, _ in entry.top] for entry in told]
    assert sample.target_top_logprobs.dtype == "float16"
    likeliest = torch.tensor([[value for _, value in entry.top] for entry in told])
    torch.testing.assert_close(torch.from_numpy(sample.target_top_logprobs), likeliest.half())
    assert (samples["plain"].target_top_logprobs == sample.target_top_logprobs).all()


def test_penalised_requests_alone_are_not_even_logged(
    config: HotdraftConfig, buffer: ReplayBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build_engine(config, buffer)
    logged: list[bool] = []
    decode = engine.decoder.round
    monkeypatch.setattr(
        engine.decoder,
        "round",
        lambda *args, log, **others: (logged.append(log), decode(*args, log=log, **others))[1],
    )
    finish(engine, ask(engine, request("penalised", frequency_penalty=0.1)))
    assert logged
    assert not any(logged)
    logged.clear()
    finish(engine, ask(engine, request("plain")))
    assert all(logged)
    assert engine.recorder is not None
    engine.recorder.close()
