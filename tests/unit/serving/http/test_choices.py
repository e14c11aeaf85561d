"""Several answers to a prompt, several prompts, log-probabilities and echo."""

import logging
import math
import threading
from typing import Any

import openai
import pytest
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from hotdraft.serving.engine.detokenizer import Detokenizer
from hotdraft.serving.http.openai import prepare
from hotdraft.serving.http.openai.logprobs import (
    TextOffsets,
    TokenTexts,
    chat_logprobs,
    prompt_offsets,
    text_logprobs,
)
from hotdraft.serving.http.openai.response_builder import TextBuilder
from hotdraft.serving.messages.request import TokenLogprob
from tests.models import tiny_tokenizer
from tests.unit.serving.http.scripted import USER, WORDS, ScriptedEngine, make_tokenizer

SAID = [f" {WORDS[token]}" for token in (1, 2, 3, 4, 0)]
"""The scripted engine's tokens, with spaces as the tokenizer writes them between words."""
TEXTS, BYTES = TokenTexts(make_tokenizer()), TokenTexts(tiny_tokenizer())


def test_n_answers_share_a_prompt_and_differ_in_their_seeds(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    reply = client.chat.completions.create(model="tiny-chat", messages=USER, n=3, seed=5)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert all(choice.message.content == "Hi you there!" for choice in reply.choices)
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (4, 15)
    assert reply.model_extra["hotdraft"]["drafted_tokens"] == 18
    assert sorted(request.params.seed for request in engine.requests) == [5, 6, 7]
    assert len({request.request_id for request in engine.requests}) == 3
    assert len({id(request.prompt_ids) for request in engine.requests}) == 1, "of which there is one in memory"


def test_a_request_is_one_line_in_the_log_however_many_answers_it_asks_for(
    client: openai.OpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hotdraft.serving.http.openai.token_stream")
    client.chat.completions.create(model="tiny-chat", messages=USER, n=3)
    [told] = caplog.records
    assert "3 answers, 15 tokens after 12" in told.message
    assert (told.answers, told.drafted_tokens, told.finish_reason) == (3, 18, "stop")


def test_the_last_seed_wraps(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    client.chat.completions.create(model="tiny-chat", messages=USER, n=2, seed=2**63 - 1)
    assert {request.params.seed for request in engine.requests} == {2**63 - 1, -(2**63)}


def test_n_answers_in_a_stream(client: openai.OpenAI) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = client.chat.completions.create(model="tiny-chat", messages=USER, n=2, **options)
    texts, roles, ends = {0: "", 1: ""}, [], []
    for chunk in chunks:
        [choice] = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        roles += [choice.index] if choice.delta.role else []
        ends += [choice.index] if choice.finish_reason else []
    assert texts == {0: "Hi you there!", 1: "Hi you there!"}
    assert sorted(roles) == sorted(ends) == [0, 1]
    assert (last.choices, last.usage.prompt_tokens, last.usage.completion_tokens) == ([], 4, 10)


def test_several_prompts(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    reply = client.completions.create(model="tiny-chat", prompt=["hello", "be brief"], n=2, echo=True)
    assert [choice.text for choice in reply.choices] == [
        "helloHi you there!",
        "helloHi you there!",
        "be briefHi you there!",
        "be briefHi you there!",
    ]
    assert sorted(request.prompt_ids for request in engine.requests) == [(5,), (5,), (7, 8), (7, 8)]
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (3, 20)


@pytest.mark.parametrize("stream", [False, True])
def test_chat_logprobs(client: openai.OpenAI, stream: bool) -> None:
    reply: Any = client.chat.completions.create(
        model="tiny-chat", messages=USER, logprobs=True, top_logprobs=2, stream=stream
    )
    parts = [choice for chunk in reply for choice in chunk.choices] if stream else reply.choices
    content = [token for part in parts if part.logprobs for token in part.logprobs.content]
    assert [token.token for token in content] == SAID
    assert [token.logprob for token in content] == [-0.5, -1.0, -1.5, -2.0, -3.0]
    assert content[0].bytes == list(b" <s>")
    assert [(top.token, top.logprob) for top in content[0].top_logprobs] == [(" hello", -0.1), (" there", -0.2)]


def test_logprobs_only_where_asked_for(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    assert client.chat.completions.create(model="tiny-chat", messages=USER).choices[0].logprobs is None
    reply = client.chat.completions.create(model="tiny-chat", messages=USER, logprobs=True)
    assert reply.choices[0].logprobs.content[0].top_logprobs == []
    assert [request.params.logprobs for request in engine.requests] == [None, 0]


def test_completion_logprobs(client: openai.OpenAI) -> None:
    told = client.completions.create(model="tiny-chat", prompt="hello there", logprobs=1).choices[0].logprobs
    assert told.tokens == SAID
    assert told.token_logprobs == [-0.5, -1.0, -1.5, -2.0, -3.0]
    assert told.top_logprobs[0] == {" hello": -0.1, " <s>": -0.5}
    assert told.text_offset == [0, 4, 12, 18, 29]


@pytest.mark.parametrize("stream", [False, True])
def test_echoed_logprobs_begin_with_the_prompt(client: openai.OpenAI, engine: ScriptedEngine, stream: bool) -> None:
    reply: Any = client.completions.create(
        model="tiny-chat", prompt=[5, 6], echo=True, logprobs=1, max_tokens=5, stream=stream
    )
    choices = [chunk.choices[0] for chunk in (reply if stream else [reply])]
    assert "".join(choice.text for choice in choices) == "hello thereHi you there!"
    assert [token for choice in choices for token in choice.logprobs.tokens] == [" hello", " there", *SAID]
    logprobs = [logprob for choice in choices for logprob in choice.logprobs.token_logprobs]
    assert logprobs == [None, -1.0, -0.5, -1.0, -1.5, -2.0, -3.0]
    assert choices[0].logprobs.top_logprobs[0] is None
    offsets = [offset for choice in choices for offset in choice.logprobs.text_offset]
    assert offsets == [0, 5, 11, 15, 23, 29, 40]
    assert engine.requests[0].params.prompt_logprobs == 1


def test_penalties_reach_the_engine(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    client.chat.completions.create(
        model="tiny-chat", messages=USER, presence_penalty=0.5, frequency_penalty=-1, logit_bias={"7": -100, "3": 1}
    )
    params = engine.requests[0].params
    assert (params.presence_penalty, params.frequency_penalty) == (0.5, -1)
    assert params.logit_bias == ((7, -100.0), (3, 1.0))


def test_what_cannot_be_has_a_number_in_json() -> None:
    told = text_logprobs([TokenLogprob(5, -math.inf, ((6, -math.inf),))], TEXTS, [0])
    assert told.token_logprobs == [-9999.0]
    assert told.top_logprobs == [{" there": -9999.0, " hello": -9999.0}]


def test_of_tokens_that_read_alike_the_likeliest_is_told() -> None:
    token = TokenLogprob(0xF0, -4.0, ((0xF1, -0.1), (0xF2, -3.0)))
    assert text_logprobs([token], BYTES, [0]).top_logprobs == [{"\ufffd": -0.1}]


def test_tokens_read_as_they_do_within_a_text() -> None:
    """What some decoders write without a space where a text begins is another token's text."""
    backend = Tokenizer(WordLevel({"<unk>": 0, "▁Paris": 1, "Paris": 2}, unk_token="<unk>"))
    backend.decoder = decoders.Metaspace()
    texts = TokenTexts(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>"))
    told = text_logprobs([TokenLogprob(1, -0.1, ((2, -2.0),))], texts, [0])
    assert (told.tokens, told.top_logprobs) == ([" Paris"], [{" Paris": -0.1, "Paris": -2.0}])
    assert [BYTES.of(token) for token in range(257)] == [tiny_tokenizer().decode([token]) for token in range(257)]


def test_parts_of_a_character_have_bytes_and_one_place() -> None:
    tokens = [TokenLogprob(token, -1.0, ()) for token in tiny_tokenizer()("é!").input_ids]
    assert [told.bytes for told in chat_logprobs(tokens, BYTES).content] == [[0xC3], [0xA9], [0x21]]
    offsets = TextOffsets(Detokenizer(tiny_tokenizer().backend_tokenizer, {256}), start=7)
    assert offsets.following([token.token_id for token in tokens[:1]]) == [7]
    assert offsets.following([token.token_id for token in tokens[1:]] + [256, 65]) == [7, 8, 9, 9]


def test_a_prompt_of_text_is_placed_as_it_was_written() -> None:
    """Its first token is one that the tokenizer put there, of which nothing is in the text."""
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing("<s> $0", special_tokens=[("<s>", 1)])
    assert prompt_offsets(tokenizer, "hello   there", True) == [0, 0, 8]
    assert prompt_offsets(tokenizer, "hello   there", False) == [0, 8]


@pytest.mark.parametrize("stream", [False, True])
def test_only_the_prompt_is_told(client: openai.OpenAI, engine: ScriptedEngine, stream: bool) -> None:
    reply: Any = client.completions.create(
        model="tiny-chat", prompt=[5, 6], echo=True, logprobs=1, max_tokens=0, stream=stream
    )
    chunks = list(reply) if stream else [reply]
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.text for choice in choices) == "hello there"
    assert [token for choice in choices for token in choice.logprobs.tokens] == [" hello", " there"]
    assert choices[-1].finish_reason == "length"
    assert stream or (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (2, 0)
    assert not engine.requests[0].record, "one token that nobody sees teaches nothing"


@pytest.mark.parametrize(
    "told", [{"logprobs": 1}, {"logprobs": 1, "echo": True, "max_tokens": 0}, {"echo": True}, {}]
)
def test_log_probs_and_prompts_are_written_beside_the_event_loop(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch, told: dict[str, Any]
) -> None:
    writers: list[str] = []
    whole = TextBuilder.whole
    monkeypatch.setattr(
        TextBuilder,
        "whole",
        lambda self, *rest: writers.append(threading.current_thread().name) or whole(self, *rest),
    )
    client.completions.create(model="tiny-chat", prompt=[5, 6], **told)
    assert [name.startswith("asyncio") for name in writers] == [bool(told)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_tokens": 0}, "only with echo"),
        ({"n": 2, "extra_body": {"best_of": 3}}, "best_of"),
        ({"n": 2, "extra_body": {"best_of": 1}}, "best_of"),
        ({"n": 128, "logprobs": 20, "echo": True, "prompt": [[5] * 40] * 7}, "set max_tokens"),
    ],
)
def test_what_is_refused(client: openai.OpenAI, options: dict[str, Any], says: str) -> None:
    with pytest.raises(openai.BadRequestError, match=says) as refused:
        client.completions.create(**{"model": "tiny-chat", "prompt": "hello", **options})
    assert refused.value.param in ("max_tokens", "best_of", "logprobs")


def test_answers_that_would_echo_too_much_together_are_refused(
    client: openai.OpenAI, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "MAX_ECHOED", 9)
    assert client.completions.create(model="tiny-chat", prompt="hello there", echo=True).choices
    engine.requests.clear()
    with pytest.raises(
        openai.BadRequestError, match="2 answers would echo 10 characters: 9 are allowed"
    ) as refused:
        client.completions.create(model="tiny-chat", prompt="hello", echo=True, n=2)
    assert refused.value.param == "echo"
    assert not engine.requests


def test_as_many_of_as_many_are_all(client: openai.OpenAI) -> None:
    reply = client.completions.create(model="tiny-chat", prompt="hello", n=2, extra_body={"best_of": 2})
    assert len(reply.choices) == 2


@pytest.mark.parametrize("told", [True, False])
def test_a_text_may_go_without_special_tokens(client: openai.OpenAI, engine: ScriptedEngine, told: bool) -> None:
    engine.tokenizer.backend_tokenizer.post_processor = TemplateProcessing("<s> $0", special_tokens=[("<s>", 1)])
    try:
        client.completions.create(model="tiny-chat", prompt="hello", extra_body={"add_special_tokens": told})
    finally:
        engine.tokenizer.backend_tokenizer.post_processor = None
    assert engine.requests[0].prompt_ids == ((1, 5) if told else (5,))
