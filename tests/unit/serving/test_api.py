"""The HTTP face over a scripted engine, seen through a real uvicorn by the real openai client."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import httpx
import openai
import pytest
import uvicorn
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from pipeline.config import HotdraftConfig
from serving.api import create_app
from serving.engine import QueueFullError
from serving.metrics import ServingMetrics
from serving.request import FinishReason, GenerationRequest, OutputDelta, RequestStats

WORDS = ["<unk>", "<s>", "system:", "user:", "assistant:", "hello", "there", "be", "brief"]
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role == 'assistant' and loop.first %}{{ raise_exception('must start with the user') }}{% endif %}"
    "{{ m.role + ': ' + m.content + ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
DRAFT_VERSION = 7


def make_tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", chat_template=TEMPLATE)


@dataclass
class ScriptedEngine:
    """Says `script`, a word a delta, from a thread of its own; then `ending`, or waits for a cancel if None."""

    script: tuple[str, ...] = ("Hi", "", " you", " there")
    ending: FinishReason | None = "stop"
    refusal: Exception | None = None
    tokenizer: PreTrainedTokenizerFast = field(default_factory=make_tokenizer)
    max_model_len: int = 64
    draft_version: int = DRAFT_VERSION
    num_running: int = 0
    num_waiting: int = 0
    is_alive: bool = True
    requests: list[GenerationRequest] = field(default_factory=list)
    cancelled: dict[str, threading.Event] = field(default_factory=dict)

    def submit(self, request: GenerationRequest, on_delta: Callable[[OutputDelta], None]) -> None:
        if self.refusal:
            raise self.refusal
        self.requests.append(request)
        self.cancelled[request.request_id] = threading.Event()
        threading.Thread(target=self._speak, args=(request, on_delta), daemon=True).start()

    def cancel(self, request_id: str) -> None:
        self.cancelled[request_id].set()

    def _speak(self, request: GenerationRequest, on_delta: Callable[[OutputDelta], None]) -> None:
        for count, word in enumerate(self.script, start=1):
            on_delta(OutputDelta(word, (count,), None, self._stats(request, count)))
        ending = self.ending
        if ending is None:
            self.cancelled[request.request_id].wait(10)
            ending = "cancelled"
        on_delta(OutputDelta("!", (0,), ending, self._stats(request, len(self.script) + 1)))

    def _stats(self, request: GenerationRequest, tokens: int) -> RequestStats:
        return RequestStats(
            prompt_tokens=len(request.prompt_ids),
            completion_tokens=tokens,
            rounds=2,
            drafted_tokens=6,
            examined_tokens=5,
            accepted_tokens=4,
            draft_version=self.draft_version,
            queued_seconds=0.0,
            time_to_first_token=0.1,
            total_seconds=0.2,
        )

    def wait_for_cancel(self, timeout: float = 5.0) -> bool:
        deadline = time.monotonic() + timeout
        while not self.requests and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.cancelled[self.requests[-1].request_id].wait(timeout)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[ScriptedEngine, str]]:
    engine = ScriptedEngine()
    config = HotdraftConfig(target="models/tiny-chat")
    app = create_app(engine, config, metrics=ServingMetrics(engine, config.served_model_name))
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        runner = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
        thread = threading.Thread(target=runner.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        while not runner.started:
            time.sleep(0.01)
        yield engine, url
        runner.should_exit = True
        thread.join(10)


@pytest.fixture
def engine(server: tuple[ScriptedEngine, str]) -> ScriptedEngine:
    """The served engine, as new."""
    engine, _ = server
    vars(engine).update(vars(ScriptedEngine()))
    return engine


@pytest.fixture
def url(server: tuple[ScriptedEngine, str]) -> str:
    return server[1]


@pytest.fixture
def client(url: str, engine: ScriptedEngine) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


USER = [{"role": "user", "content": "hello there"}]


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny-chat"]
    assert client.models.retrieve("tiny-chat").owned_by == "hotdraft"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other/model")


def test_chat_completion(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    reply = client.chat.completions.create(model="tiny-chat", messages=USER)
    assert reply.object == "chat.completion"
    assert reply.id.startswith("chatcmpl-")
    assert reply.model == "tiny-chat"
    assert abs(reply.created - time.time()) < 60
    assert reply.system_fingerprint == "hotdraft-draft-v7"
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].message.content == "Hi you there!"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.prompt_tokens == 4
    assert reply.usage.completion_tokens == 5
    assert reply.usage.total_tokens == 9
    assert reply.usage.completion_tokens_details.accepted_prediction_tokens == 4
    assert reply.usage.completion_tokens_details.rejected_prediction_tokens == 2
    assert reply.model_extra["hotdraft"] == {
        "draft_version": 7,
        "rounds": 2,
        "drafted_tokens": 6,
        "accepted_tokens": 4,
    }
    request = engine.requests[0]
    assert [WORDS[token] for token in request.prompt_ids] == ["user:", "hello", "there", "assistant:"]
    assert request.params.max_tokens == 64 - 4, "up to the context limit by default"
    assert request.params.temperature == 1.0
    assert request.record
    assert request.domain == "default"


def test_options_reach_the_engine(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    client.chat.completions.create(
        model="tiny-chat",
        messages=[
            {"role": "developer", "content": [{"type": "text", "text": "be"}, {"type": "text", "text": "brief"}]},
            *USER,
        ],
        max_tokens=30,
        max_completion_tokens=9,
        temperature=0,
        top_p=0.5,
        seed=-3,
        stop="there",
        store=False,
        metadata={"domain": "sql"},
        user="someone",
        extra_body={"top_k": 20, "min_p": 0.1, "ignore_eos": True, "service_tier": "auto", "unheard_of": 1},
    )
    request = engine.requests[0]
    words = [WORDS[token] for token in request.prompt_ids]
    assert words == ["system:", "be", "brief", "user:", "hello", "there", "assistant:"]
    params = request.params
    assert (params.max_tokens, params.temperature, params.top_p, params.seed) == (9, 0, 0.5, -3)
    assert (params.stop, params.top_k, params.min_p, params.ignore_eos) == (("there",), 20, 0.1, True)
    assert request.domain == "sql"
    assert not request.record


@pytest.mark.parametrize(
    ("metadata", "domain"), [(None, "billing"), ({"team": "a"}, "billing"), ({"domain": "sql"}, "sql")]
)
def test_a_header_tags_traffic_that_metadata_does_not(
    url: str, engine: ScriptedEngine, metadata: dict[str, str] | None, domain: str
) -> None:
    body = {"model": "tiny-chat", "prompt": "hello", "metadata": metadata}
    headers = {"X-Hotdraft-Domain": "billing"}
    assert httpx.post(f"{url}/v1/completions", json=body, headers=headers).status_code == 200
    assert engine.requests[0].domain == domain


def test_null_and_harmless_values_are_defaults(url: str, engine: ScriptedEngine) -> None:
    body = {"model": "tiny-chat", "messages": USER, "temperature": None, "top_p": None, "top_k": -1}
    body |= {"stop": None, "seed": None, "n": 1, "tools": [], "logprobs": False, "presence_penalty": 0}
    body |= {"response_format": {"type": "text"}, "stream": None, "max_tokens": None, "store": None}
    assert httpx.post(f"{url}/v1/chat/completions", json=body).status_code == 200
    params = engine.requests[0].params
    assert (params.temperature, params.top_p, params.top_k, params.stop) == (1.0, 1.0, 0, ())


def test_chat_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(model="tiny-chat", messages=USER, stream=True)
    chunks = list(stream)
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
    assert all(chunk.system_fingerprint == "hotdraft-draft-v7" for chunk in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hi you there!"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, None, "stop"]
    assert all(chunk.usage is None for chunk in chunks)
    assert chunks[-1].model_extra["hotdraft"]["accepted_tokens"] == 4
    assert all("hotdraft" not in chunk.model_extra for chunk in chunks[:-1])


@pytest.mark.parametrize("endpoint", ["chat", "text"])
def test_stream_usage(client: openai.OpenAI, endpoint: str) -> None:
    common = {"model": "tiny-chat", "stream": True, "stream_options": {"include_usage": True}}
    if endpoint == "chat":
        chunks = list(client.chat.completions.create(messages=USER, **common))
    else:
        chunks = list(client.completions.create(prompt="hello", **common))
    assert all(chunk.usage is None and "usage" in chunk.model_fields_set for chunk in chunks[:-1])
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 5
    assert chunks[-1].usage.completion_tokens_details.rejected_prediction_tokens == 2
    assert chunks[-1].model_extra["hotdraft"]["draft_version"] == 7


def test_stream_on_the_wire(url: str, engine: ScriptedEngine) -> None:
    body = {"model": "tiny-chat", "messages": USER, "stream": True}
    reply = httpx.post(f"{url}/v1/chat/completions", json=body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["cache-control"] == "no-cache"
    events = reply.text.removesuffix("\n\n").split("\n\n")
    assert events[-1] == "data: [DONE]"
    first = json.loads(events[0].removeprefix("data: "))
    assert first["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert "usage" not in first
    last = json.loads(events[-2].removeprefix("data: "))
    assert last["choices"][0]["delta"] == {"content": "!"}


@pytest.mark.parametrize("prompt", ["hello there", [5, 6], ["hello there"], [[5, 6]]])
def test_completion_prompts(client: openai.OpenAI, engine: ScriptedEngine, prompt: str | list) -> None:
    engine.ending = "length"
    reply = client.completions.create(model="tiny-chat", prompt=prompt)
    assert reply.object == "text_completion"
    assert reply.id.startswith("cmpl-")
    assert reply.choices[0].text == "Hi you there!"
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.prompt_tokens == 2
    assert reply.model_extra["hotdraft"]["rounds"] == 2
    assert engine.requests[0].prompt_ids == (5, 6)
    assert engine.requests[0].params.max_tokens == 16


def test_completion_stream(client: openai.OpenAI) -> None:
    chunks = list(client.completions.create(model="tiny-chat", prompt="hello", stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hi you there!"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, "stop"]


def test_default_completion_tokens_fit_the_context(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    client.completions.create(model="tiny-chat", prompt=[5] * 60)
    assert engine.requests[0].params.max_tokens == 4


def test_unknown_model(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="The model `nope` does not exist") as caught:
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
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"stop": [""]}, "stop.0"),
        ({"n": 2}, "n"),
        ({"seed": 2**63}, "seed"),
        ({"logprobs": True}, "logprobs"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"extra_body": {"guided_regex": "a*"}}, "guided_regex"),
        ({"extra_body": {"top_k": -2}}, "top_k"),
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
        ({"prompt": ["hello", "there"]}, "one prompt a request"),
        ({"prompt": [5, 900]}, "token id 900 is not in 0..8"),
        ({"prompt": [-1]}, "token id -1"),
        ({"prompt": {"text": "hello"}}, "prompt: must be a text or a list of token ids"),
        ({"prompt": "hello", "logprobs": 0}, "logprobs is not supported"),
        ({"prompt": "hello", "echo": True}, "echo is not supported"),
    ],
)
def test_bad_completion_requests(
    client: openai.OpenAI, engine: ScriptedEngine, options: dict, message: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        client.completions.create(model="tiny-chat", **options)
    assert not engine.requests


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b'{"model": "tiny-chat"}', b'{"model": "tiny-chat", "prompt": "\\ud800"}', b"\xff"],
)
def test_broken_bodies(url: str, engine: ScriptedEngine, content: bytes) -> None:
    reply = httpx.post(f"{url}/v1/completions", content=content, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}


def test_framework_errors_have_the_same_shape(url: str, engine: ScriptedEngine) -> None:
    for method, path, status in [("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405)]:
        reply = httpx.request(method, url + path)
        assert reply.status_code == status
        assert reply.json()["error"]["type"] == "invalid_request_error"


def test_context_length(client: openai.OpenAI) -> None:
    for create in (
        lambda: client.completions.create(model="tiny-chat", prompt=[5] * 64),
        lambda: client.completions.create(model="tiny-chat", prompt=[5] * 60, max_tokens=5),
        lambda: client.chat.completions.create(
            model="tiny-chat", messages=[{"role": "user", "content": "hello " * 99}]
        ),
    ):
        with pytest.raises(openai.BadRequestError, match="maximum context length is 64 tokens") as caught:
            create()
        assert caught.value.code == "context_length_exceeded"


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


def test_disconnect_cancels_a_stream(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.ending = None
    stream = client.chat.completions.create(model="tiny-chat", messages=USER, stream=True)
    assert next(iter(stream)).choices[0].delta.role == "assistant"
    assert not engine.cancelled[engine.requests[0].request_id].is_set()
    stream.close()
    assert engine.wait_for_cancel()


def test_disconnect_before_the_first_token_cancels_a_stream(url: str, engine: ScriptedEngine) -> None:
    engine.script, engine.ending = (), None
    body = {"model": "tiny-chat", "messages": USER, "stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body) as reply:
        assert reply.status_code == 200
    assert engine.wait_for_cancel()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_disconnect_cancels_a_whole_response(url: str, engine: ScriptedEngine, path: str) -> None:
    engine.ending = None
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(url + path, json={"model": "tiny-chat", "messages": USER, "prompt": "hello"}, timeout=0.3)
    assert engine.wait_for_cancel()


def test_a_finished_request_is_not_cancelled(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    client.chat.completions.create(model="tiny-chat", messages=USER)
    list(client.chat.completions.create(model="tiny-chat", messages=USER, stream=True))
    client.close()
    time.sleep(0.1)
    assert len(engine.requests) == 2
    assert not any(event.is_set() for event in engine.cancelled.values())


def test_health_version_and_metrics(url: str, engine: ScriptedEngine) -> None:
    engine.num_waiting = 3
    assert httpx.get(f"{url}/health").json()["status"] == "ok"
    assert httpx.get(f"{url}/version").json()["draft_version"] == DRAFT_VERSION
    engine.is_alive = False
    reply = httpx.get(f"{url}/health")
    assert reply.status_code == 503
    assert reply.json()["error"]["message"] == "The engine is not running."
    reply = httpx.get(f"{url}/metrics", headers={"accept": "application/openmetrics-text;version=1.0.0"})
    assert reply.headers["content-type"].startswith("text/plain")
    assert 'vllm:num_requests_waiting{model_name="tiny-chat"} 3.0' in reply.text
