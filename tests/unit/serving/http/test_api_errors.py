"""What the HTTP face refuses, and how it says so."""

from typing import Any, NoReturn

import httpx
import openai
import pytest
from transformers import PreTrainedTokenizerFast

from hotdraft.serving.engine.engine import ShuttingDownError
from hotdraft.serving.engine.waiting import QueueFullError
from tests.unit.serving.http.scripted import USER, ScriptedEngine


def test_unknown_model(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="`nope` does not exist: this server has `tiny-chat`") as caught:
        client.chat.completions.create(model="nope", messages=USER)
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"
    assert caught.value.type == "invalid_request_error"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "hello"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "assistant", "content": "hello"}]}, "messages"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 10**4300 - 1}, "max_tokens"),  # as long as Python reads, and with a prompt's longer
        ({"max_completion_tokens": 2**31}, "max_completion_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"stop": [""]}, "stop.0"),
        ({"stop": ["x"] * 33}, "stop"),
        ({"stop": "x" * 257}, "stop.0"),
        ({"max_tokens": 4, "extra_body": {"min_tokens": 5}}, "min_tokens"),
        ({"extra_body": {"min_tokens": -1}}, "min_tokens"),
        ({"extra_body": {"min_tokens": True}}, "min_tokens"),
        ({"extra_body": {"stop_token_ids": 5}}, "stop_token_ids"),
        ({"extra_body": {"stop_token_ids": [5, True]}}, "stop_token_ids.1"),
        ({"extra_body": {"stop_token_ids": [-1]}}, "stop_token_ids.0"),
        ({"extra_body": {"stop_token_ids": [5] * 129}}, "stop_token_ids"),
        ({"messages": USER * 2049}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 65}]}, "messages.0.content"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"seed": 2**63}, "seed"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"extra_body": {"repetition_penalty": 1e-3}}, "repetition_penalty"),
        ({"logit_bias": {str(token): 1 for token in range(301)}}, "logit_bias"),
        ({"extra_body": {"guided_regex": "a*"}}, "guided_regex"),
        ({"extra_body": {"skip_special_tokens": False}}, "skip_special_tokens"),
        ({"extra_body": {"typical_p": 0.5}}, "typical_p"),
        ({"extra_body": {"add_generation_prompt": False}}, "add_generation_prompt"),
        ({"extra_body": {"top_k": -2}}, "top_k"),
        ({"extra_body": {"chat_template": "{{ messages }}"}}, "chat_template"),
        ({"extra_body": {"return_token_ids": True}}, "return_token_ids"),
        ({"extra_body": {"return_prompt_text": True}}, "return_prompt_text"),
        ({"logprobs": True, "extra_body": {"logprob_token_ids": [5]}}, "logprob_token_ids"),
        ({"extra_body": {"repetition_detection": {"max_pattern_size": 1}}}, "repetition_detection"),
        ({"extra_body": {"thinking_token_budget": 5}}, "thinking_token_budget"),
        ({"extra_body": {"watermarking": True}}, "watermarking"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": False}, "temperature"),
        ({"metadata": {"domain": "x" * 513}}, "metadata.domain"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_bad_chat_requests_name_the_field(
    client: openai.OpenAI, engine: ScriptedEngine, options: dict, param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**({"model": "tiny-chat", "messages": USER} | options))
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert param in caught.value.message or param == "messages"
    assert not engine.requests


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": ""}, "at least one token"),
        ({"prompt": []}, "at least one token"),
        ({"prompt": ["hello", [5]]}, "must be a text, a list of token ids, or a list of either"),
        ({"prompt": ["hello", ""]}, "at least one token"),
        ({"prompt": [5, 900]}, "token id 900 is not in 0..8"),
        ({"prompt": [-1]}, "token id -1"),
        ({"prompt": {"text": "hello"}}, "prompt: must be a text, a list of token ids"),
        ({"prompt": "hello", "logprobs": 21}, "logprobs"),
        ({"prompt": "hello", "logprobs": False}, "logprobs: must not be false: it is no switch"),
        ({"prompt": "hello", "extra_body": {"prompt_embeds": "x"}}, "prompt_embeds is not supported"),
        ({"prompt": "hello", "logit_bias": {"1": 2, "3": 101}}, "each with -100 to 100, not 3: 101$"),
        ({"prompt": ["hello"] * 2049}, "at most 2048 prompts"),
        ({"prompt": ["hello"] * 9, "n": 128}, "1152 answers are asked for at once, 1024 are allowed"),
    ],
)
def test_bad_completion_requests(
    client: openai.OpenAI, engine: ScriptedEngine, options: dict, message: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        client.completions.create(model="tiny-chat", **options)
    assert not engine.requests


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"logit_bias": {f"no token {number}": "" for number in range(301)}}, "at most 300 entries, not 301"),
        ({"metadata": dict.fromkeys(map(str, range(17)))}, "at most 16 entries, not 17"),
        ({"messages": [{"role": "user", "content": [{}] * 64}] * 65}, "at most 4096 parts together, not 4160"),
    ],
)
def test_what_is_too_many_is_refused_before_each_is_looked_at(
    client: openai.OpenAI, options: dict, says: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=says) as caught:
        client.chat.completions.create(**({"model": "tiny-chat", "messages": USER} | options))
    assert caught.value.param in options


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b'{"model": "tiny-chat"}',
        b'{"model": "tiny-chat", "prompt": "\\ud800"}',
        b'{"model": "\\ud800", "prompt": "hello"}',
        b'{"model": "tiny-chat", "prompt": "hello", "metadata": {"\\ud800": 1}}',
        b'{"model": "tiny-chat", "prompt": "hello", "user": "\\ud800"}',
        b"\xff",
    ],
)
def test_broken_bodies(url: str, engine: ScriptedEngine, content: bytes) -> None:
    reply = httpx.post(f"{url}/v1/completions", content=content, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "The body is missing: a JSON object is needed"),
        (
            b'{"model": "tiny-chat", "messages": [{"role": "user", "content": 5}]}',
            "must be a text or a list of parts",
        ),
        (b'{"model": "tiny-chat", "messages": [{"role": "user", "content": "a"}], "stop": {}}', "a list of texts"),
        (b'{"model": "tiny-chat", "messages": [{"role": "user", "content": "a"}], "n": 0}', "n: Input should be"),
        (
            b'{"model": "tiny-chat", "messages": [{"role": "assistant", "content": null}]}',
            "a text or a list of parts, not null",
        ),
        (
            b'{"model": "tiny-chat", "messages": [{"role": "assistant", "content": null, "tool_calls": [{}]}]}',
            "tool_calls of a message is not supported",
        ),
        (
            b'{"model": "tiny-chat", "messages": [{"role": "user", "content": "a"}], "metadata": {"a": "'
            + b"x" * 513
            + b'"}}',
            "String should have at most 512 characters",
        ),
        (b"[]", "The body must be a JSON object, sent with Content-Type: application/json"),
        (b'{"model": "tiny-chat", "n": }', "The body is not valid JSON: Expecting value (character 28)"),
        (b"[" * 5000 + b"]" * 5000, "The body cannot be read as JSON: it is not UTF-8"),
        (b'{"n": ' + b"9" * 5000 + b"}", "or has a number of too many digits"),
    ],
)
def test_what_is_wrong_is_said_by_the_fields_name(url: str, engine: ScriptedEngine, body: bytes, says: str) -> None:
    header = {"content-type": "application/json"}
    error = httpx.post(f"{url}/v1/chat/completions", content=body, headers=header).json()["error"]
    assert says in error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"logit_bias": {"." * 500_000: 1}},
        {"metadata": {"." * 500_000: "x" * 513}},
        {"model": "." * 500_000},
    ],
)
def test_of_a_long_name_that_a_client_made_up_enough_is_quoted(
    url: str, engine: ScriptedEngine, fields: dict[str, Any]
) -> None:
    """Of a field's it made a pattern, which took seconds and megabytes that it kept."""
    body = {"model": "tiny-chat", "messages": [{"role": "user", "content": "a"}], **fields}
    reply = httpx.post(f"{url}/v1/chat/completions", json=body)
    assert reply.status_code in (400, 404)
    assert len(reply.content) < 5_000


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("POST", "/v1/responses", 404, "There is no /v1/responses here"),
        ("POST", "/chat/completions", 404, "There is no /chat/completions here: OpenAI's paths begin with /v1"),
        ("GET", "/v1/%0Anothing" + "." * 5000, 404, "There is no /v1/nothing...."),
        ("GET", "/v1/completions", 405, "/v1/completions takes POST, not GET."),
    ],
)
def test_who_asks_beside_what_there_is_hears_where_it_is(
    url: str, engine: ScriptedEngine, method: str, path: str, status: int, says: str
) -> None:
    reply = httpx.request(method, url + path, headers={"content-type": "application/json"})
    assert reply.status_code == status
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert reply.json()["error"]["message"].startswith(says)
    assert len(reply.content) < 2000


def test_context_length(client: openai.OpenAI) -> None:
    for create in (
        lambda: client.completions.create(model="tiny-chat", prompt=[5] * 64),
        lambda: client.completions.create(model="tiny-chat", prompt=[5] * 65),
        lambda: client.completions.create(model="tiny-chat", prompt=[5] * 60, max_tokens=5),
        lambda: client.chat.completions.create(
            model="tiny-chat", messages=[{"role": "user", "content": "hello " * 99}]
        ),
    ):
        with pytest.raises(openai.BadRequestError, match="maximum context length is 64 tokens") as caught:
            create()
        assert caught.value.code == "context_length_exceeded"


class Unread:
    """A tokenizer that must not be asked."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.chat_template = tokenizer.chat_template

    def __call__(self, text: str) -> NoReturn:
        raise AssertionError("it was tokenised")

    apply_chat_template = __call__


def test_what_cannot_fit_is_refused_unread(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    """The tokenizer's longest word has 10 characters, and 64 of them fit."""
    engine.tokenizer = Unread(engine.tokenizer)
    words = "word " * 650_000
    for bad, told in [(words[:641], "641 characters, of which it takes 640"), ([5] * 65, "65 token ids")]:
        with pytest.raises(openai.BadRequestError, match=told) as caught:
            client.completions.create(model="tiny-chat", prompt=bad)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
    messages = [{"role": "user", "content": "x" * 100}] * 7
    with pytest.raises(openai.BadRequestError, match="700 characters") as caught:
        client.chat.completions.create(model="tiny-chat", messages=messages)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


def test_no_chat_template(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.tokenizer.chat_template = None
    with pytest.raises(openai.BadRequestError, match="no chat template"):
        client.chat.completions.create(model="tiny-chat", messages=USER)


def test_full_queue(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.refusal = QueueFullError("1024 requests are waiting")
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError, match="1024 requests are waiting") as caught:
            client.chat.completions.create(model="tiny-chat", messages=USER, stream=stream)
        assert caught.value.status_code == 503
        assert int(caught.value.response.headers["retry-after"]) >= 1


def test_an_engine_that_ends_sends_clients_elsewhere(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.refusal = ShuttingDownError("the server is shutting down")
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model="tiny-chat", messages=USER)
    assert (caught.value.status_code, caught.value.code) == (503, "shutting_down")
    assert caught.value.response.headers["connection"] == "close"


def test_a_refused_choice_takes_the_others_with_it(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.ending, engine.room = None, 2
    with pytest.raises(openai.InternalServerError, match="no room"):
        client.chat.completions.create(model="tiny-chat", messages=USER, n=3)
    assert len(engine.requests) == 2
    assert all(event.is_set() for event in engine.cancelled.values())


def test_what_has_no_room_for_all_choices_is_refused_before_any_is_made(
    client: openai.OpenAI, engine: ScriptedEngine
) -> None:
    engine.most_at_once = 2
    with pytest.raises(openai.InternalServerError, match="no room for all"):
        client.chat.completions.create(model="tiny-chat", messages=USER, n=3)
    assert engine.requests == []


def test_refusal_by_the_engine(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.refusal = ValueError("the engine knows better")
    with pytest.raises(openai.BadRequestError, match="the engine knows better"):
        client.chat.completions.create(model="tiny-chat", messages=USER)


def test_failure_of_the_engine(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.ending = "error"
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model="tiny-chat", messages=USER)
    assert caught.value.type == "server_error"

    heard = []
    with pytest.raises(openai.APIError, match="The server had an error"):  # noqa: PT012
        for chunk in client.chat.completions.create(model="tiny-chat", messages=USER, stream=True):
            heard.append(chunk.choices[0].delta.content)
    assert "".join(heard) == "Hi you there"

    engine.refusal = RuntimeError("a bug")
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model="tiny-chat", messages=USER)
    assert caught.value.status_code == 500
    assert "a bug" not in caught.value.message
