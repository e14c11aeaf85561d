"""The HTTP face over a scripted engine, seen through a real uvicorn by the real openai client."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import httpx
import openai
import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.system.run_lock import run_lock
from hotdraft.serving.http.app import create_app
from hotdraft.serving.metrics.listener import ServingMetrics
from hotdraft.serving.metrics.state_metrics import Sources
from tests.served_app import served
from tests.unit.serving.http.scripted import DRAFT_VERSION, USER, WORDS, ScriptedEngine


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
    assert reply.usage.completion_tokens_details.accepted_prediction_tokens == 4 + 1
    assert reply.usage.completion_tokens_details.rejected_prediction_tokens == 2 + 1
    assert reply.model_extra["hotdraft"] == {
        "draft_version": 7,
        "rounds": 2,
        "drafted_tokens": 6,
        "accepted_tokens": 4,
        "guessed_tokens": 2,
        "accepted_guesses": 1,
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
        extra_body={
            "top_k": 20,
            "min_p": 0.1,
            "eta_cutoff": 0.01,
            "repetition_penalty": 1.2,
            "ignore_eos": True,
            "service_tier": "auto",
            "unheard_of": 1,
        },
    )
    request = engine.requests[0]
    words = [WORDS[token] for token in request.prompt_ids]
    assert words == ["system:", "be", "brief", "user:", "hello", "there", "assistant:"]
    params = request.params
    assert (params.max_tokens, params.temperature, params.top_p, params.seed) == (9, 0, 0.5, -3)
    assert (params.stop, params.top_k, params.min_p, params.eta_cutoff) == (("there",), 20, 0.1, 0.01)
    assert (params.ignore_eos, params.repetition_penalty) == (True, 1.2)
    assert not request.record


def test_the_chat_template_is_told_how_much_to_reason(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    thinks = "{% if enable_thinking is undefined %}hello{% elif enable_thinking %}there{% else %}be{% endif %}"
    engine.tokenizer.chat_template = "user: {{ reasoning_effort }} " + thinks
    for effort in ({}, {"reasoning_effort": "none"}, {"reasoning_effort": "low"}):
        client.chat.completions.create(model="tiny-chat", messages=USER, **effort)
    assert [WORDS[request.prompt_ids[-1]] for request in engine.requests] == ["hello", "be", "there"]
    with pytest.raises(openai.BadRequestError, match="reasoning_effort"):
        client.chat.completions.create(model="tiny-chat", messages=USER, reasoning_effort="very")


def test_a_request_that_is_not_stored_has_no_domain_of_its_own(url: str, engine: ScriptedEngine) -> None:
    body = {"model": "tiny-chat", "prompt": "hello", "store": False, "metadata": {"domain": "sql"}}
    assert httpx.post(f"{url}/v1/completions", json=body, headers={"X-Hotdraft-Domain": "sql"}).status_code == 200
    del body["metadata"]
    assert httpx.post(f"{url}/v1/completions", json=body, headers={"X-Hotdraft-Domain": "sql"}).status_code == 200
    assert [(request.domain, request.record) for request in engine.requests] == [("unrecorded", False)] * 2


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
    body |= {"top_logprobs": 0}
    body |= {"response_format": {"type": "text"}, "stream": None, "max_tokens": None, "store": None}
    assert httpx.post(f"{url}/v1/chat/completions", json=body).status_code == 200
    params = engine.requests[0].params
    assert (params.temperature, params.top_p, params.top_k, params.stop) == (1.0, 1.0, 0, ())


def test_what_a_request_leaves_out_is_as_the_models_authors_have_it(
    client: openai.OpenAI, engine: ScriptedEngine
) -> None:
    engine.sampling_defaults = {"temperature": 0.6, "top_k": 20}
    client.chat.completions.create(model="tiny-chat", messages=USER)
    client.chat.completions.create(model="tiny-chat", messages=USER, temperature=0, extra_body={"top_k": -1})
    assert [(each.params.temperature, each.params.top_k) for each in engine.requests] == [(0.6, 20), (0, 0)]


def test_chat_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(model="tiny-chat", messages=USER, stream=True)
    chunks = list(stream)
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
    assert all(chunk.system_fingerprint == "hotdraft-draft-v7" for chunk in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hi you there!"
    *before, last = [chunk.choices[0].finish_reason for chunk in chunks]
    assert (set(before), last) == ({None}, "stop")
    assert all(chunk.usage is None for chunk in chunks)
    assert chunks[-1].model_extra["hotdraft"]["accepted_tokens"] == 4
    assert all("hotdraft" not in chunk.model_extra for chunk in chunks[:-1])


@pytest.mark.parametrize("reason", ["###", 5, None])
@pytest.mark.parametrize("endpoint", ["chat", "text"])
def test_the_stop_string_or_token_that_ended_an_answer_is_told_as_vllm_does(
    client: openai.OpenAI, engine: ScriptedEngine, endpoint: str, reason: str | int | None
) -> None:
    engine.stop_reason = reason
    asked: dict = {"messages": USER} if endpoint == "chat" else {"prompt": "hello"}
    asked |= {"stop": "###", "extra_body": {"stop_token_ids": [5, 7], "min_tokens": 3}}
    create = client.chat.completions.create if endpoint == "chat" else client.completions.create
    assert create(model="tiny-chat", **asked).choices[0].stop_reason == reason
    assert (engine.requests[0].params.stop_token_ids, engine.requests[0].params.min_tokens) == ((5, 7), 3)
    *_, last = create(model="tiny-chat", stream=True, **asked)
    assert last.choices[0].stop_reason == reason


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
    assert chunks[-1].usage.completion_tokens_details.rejected_prediction_tokens == 2 + 1
    assert chunks[-1].model_extra["hotdraft"]["draft_version"] == 7


@pytest.mark.parametrize(
    ("endpoint", "include_usage", "counts"),
    [("chat", True, [0, 5, 5]), ("text", True, [5, 5]), ("chat", False, [])],
)
def test_the_usage_so_far_is_in_each_chunk_where_a_client_of_vllm_asks_for_it(
    client: openai.OpenAI, engine: ScriptedEngine, endpoint: str, include_usage: bool, counts: list[int]
) -> None:
    engine.script = ("", "", "", "")
    options = {"include_usage": include_usage, "continuous_usage_stats": True}
    common = {"model": "tiny-chat", "stream": True, "stream_options": options}
    if endpoint == "chat":
        chunks = list(client.chat.completions.create(messages=USER, **common))
    else:
        chunks = list(client.completions.create(prompt="hello", **common))
    told = [chunk.usage for chunk in chunks if chunk.usage]
    assert [usage.completion_tokens for usage in told] == counts
    assert all(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens for usage in told)


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
    delta = last["choices"][0]["delta"]
    assert delta.keys() == {"content"}
    assert delta["content"].endswith("!")


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
    *before, last = [chunk.choices[0].finish_reason for chunk in chunks]
    assert (set(before) <= {None}, last) == (True, "stop")


def test_default_completion_tokens_fit_the_context(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    client.completions.create(model="tiny-chat", prompt=[5] * 60)
    assert engine.requests[0].params.max_tokens == 4


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
    told, deadline = f'handler="{path}",method="POST",status="499"', time.monotonic() + 5
    while told not in httpx.get(f"{url}/metrics").text and time.monotonic() < deadline:
        time.sleep(0.05)
    assert told in httpx.get(f"{url}/metrics").text, "who leaves is no failure of the server"


def test_a_finished_request_is_not_cancelled(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    client.chat.completions.create(model="tiny-chat", messages=USER)
    list(client.chat.completions.create(model="tiny-chat", messages=USER, stream=True))
    client.close()
    time.sleep(0.1)
    assert len(engine.requests) == 2
    assert not any(event.is_set() for event in engine.cancelled.values())


def test_a_version_that_cannot_serve_here_is_told_and_does_not_make_the_process_ill(
    engine: ScriptedEngine,
) -> None:
    adapters = Mock(refused=0, unusable={}, problem=None, swap_failures=0, errors=0)
    with watched(engine, Sources(adapters=adapters)) as url:
        assert httpx.get(f"{url}/health").json() == {"status": "ok"}
        adapters.unusable = {5: "out of memory"}
        reply = httpx.get(f"{url}/health")
        text = httpx.get(f"{url}/metrics").text
    assert (reply.status_code, reply.json()) == (200, {"status": "ok", "unusable_adapters": {"5": "out of memory"}})
    assert 'hotdraft_adapter_unusable{model_name="tiny-chat",version="5"} 1.0' in text


def test_a_registry_that_is_away_is_told_and_does_not_make_the_process_ill(engine: ScriptedEngine) -> None:
    adapters = Mock(refused=0, unusable={}, problem="no route to host", swap_failures=0, errors=0)
    with watched(engine, Sources(adapters=adapters)) as url:
        reply = httpx.get(f"{url}/health")
    assert (reply.status_code, reply.json()) == (200, {"status": "ok", "adapter_registry": "no route to host"})


def test_shards_that_cannot_be_written_are_told_and_do_not_make_the_process_ill(engine: ScriptedEngine) -> None:
    recorder = Mock(recorded=0, dropped=16, problem="ClientError: slow down")
    with watched(engine, Sources(recorder=recorder)) as url:
        reply = httpx.get(f"{url}/health")
    assert (reply.status_code, reply.json()) == (200, {"status": "ok", "recording": "ClientError: slow down"})


def test_a_run_directory_that_was_moved_or_replaced_under_the_server_is_told(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    with run_lock(run_dir, "server") as lock, watched(engine, Sources(lock=lock)) as url:
        assert httpx.get(f"{url}/health").json() == {"status": "ok"}
        run_dir.rename(tmp_path / "away")
        assert "is not what it was" in httpx.get(f"{url}/health").json()["run_dir"]
        with run_lock(run_dir, "server"):
            told = httpx.get(f"{url}/health")
            assert (told.status_code, "is another folder" in told.json()["run_dir"]) == (200, True)
        (run_dir / "server.lock").unlink()
        run_dir.rmdir()
        (tmp_path / "away").rename(run_dir)
        assert httpx.get(f"{url}/health").json() == {"status": "ok"}


@contextmanager
def watched(engine: ScriptedEngine, sources: Sources) -> Iterator[str]:
    config = HotdraftConfig(target="tiny-chat")
    with served(create_app(engine, config, metrics=ServingMetrics(engine, "tiny-chat", sources))) as url:
        yield url


def test_health_version_and_metrics(url: str, engine: ScriptedEngine) -> None:
    engine.num_waiting = 3
    assert httpx.get(f"{url}/health").json()["status"] == "ok"
    assert httpx.get(f"{url}/ready").status_code == 200
    engine.is_draining = True
    assert httpx.get(f"{url}/health").status_code == 200, "what ends works still"
    assert httpx.get(f"{url}/ready").json()["error"]["code"] == "shutting_down"
    assert httpx.get(f"{url}/version").json()["draft_version"] == DRAFT_VERSION
    engine.is_alive = False
    reply = httpx.get(f"{url}/health")
    assert reply.status_code == 503
    assert reply.json()["error"]["message"] == "The engine is not running."
    engine.fatal_error = "RuntimeError: the device is gone"
    message = httpx.get(f"{url}/health").json()["error"]["message"]
    assert message == "The engine is not running. It ended by RuntimeError: the device is gone"
    assert httpx.get(f"{url}/ready").status_code == 503
    reply = httpx.get(f"{url}/metrics", headers={"accept": "application/openmetrics-text;version=1.0.0"})
    assert reply.headers["content-type"].startswith("text/plain")
    assert 'vllm:num_requests_waiting{engine="0",model_name="tiny-chat"} 3.0' in reply.text
