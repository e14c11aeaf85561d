"""API and admin keys, the limit on bodies, request ids."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from hotdraft.pipeline.config.section import ConfigError
from hotdraft.pipeline.config.serving import ServerConfig
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.serving.http import access
from hotdraft.serving.http.access import read_admin_keys, read_api_keys
from hotdraft.serving.http.app import create_app
from hotdraft.serving.metrics.listener import ServingMetrics
from tests.served_app import served
from tests.unit.serving.http.scripted import USER, ScriptedEngine

KEYS = ["first-key", "zweiter-schlüssel"]


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    engine = ScriptedEngine()
    config = HotdraftConfig(target="tiny-chat", server={"max_body_bytes": 1000})
    with served(create_app(engine, config, metrics=ServingMetrics(engine, "tiny-chat"), api_keys=KEYS)) as url:
        yield url


def test_any_of_the_keys_opens(guarded: str) -> None:
    with openai.OpenAI(base_url=f"{guarded}/v1", api_key="first-key", max_retries=0) as client:
        assert client.chat.completions.create(model="tiny-chat", messages=USER).choices
    headers = {"Authorization": f"bearer {KEYS[1]}".encode()}
    assert httpx.get(f"{guarded}/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "authorization", [None, "Bearer wrong", "Bearer", "Bearer first-key2", "Basic first-key", "first-key"]
)
@pytest.mark.parametrize("path", ["/v1/models", "/v1/nothing", "/admin/status"])
def test_nothing_else_does(guarded: str, path: str, authorization: str | None) -> None:
    headers = {"Authorization": authorization} if authorization else {}
    reply = httpx.get(guarded + path, headers=headers)
    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    assert reply.json()["error"]["code"] == "invalid_api_key"
    assert reply.headers["x-request-id"]


def test_probes_need_no_key(guarded: str) -> None:
    for path in ("/health", "/ready", "/version", "/metrics", "/docs", "/openapi.json"):
        assert httpx.get(guarded + path).status_code == 200
    secured = httpx.get(f"{guarded}/openapi.json").json()["paths"]["/v1/models"]["get"]["security"]
    assert secured == [{"HTTPBearer": []}]


def test_the_documentation_names_no_foreign_host(guarded: str) -> None:
    assert "http" not in httpx.get(f"{guarded}/docs").text
    assert httpx.get(f"{guarded}/docs/swagger-ui.css").status_code == 200
    assert httpx.get(f"{guarded}/redoc").status_code == 404


def test_keys_come_from_a_file_too(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# team a\nkey-a\n\n key-b \n")
    assert read_api_keys(ServerConfig(api_keys="one, two", api_key_file=path)) == ["one", "two", "key-a", "key-b"]
    path.write_text("# none yet\n")
    with pytest.raises(ConfigError, match="has no key"):
        read_api_keys(ServerConfig(api_key_file=path))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_api_keys(ServerConfig(api_key_file=tmp_path / "missing"))
    assert "hidden" not in repr(ServerConfig(api_keys=["hidden"]))


@pytest.mark.parametrize(
    ("api_keys", "admin_keys", "opens"),
    [
        ([], [], {"none": (200, 404), "api": (200, 404), "admin": (200, 404)}),
        (["api"], [], {"none": (401, 401), "api": (200, 404), "admin": (401, 401)}),
        ([], ["admin"], {"none": (200, 401), "api": (200, 401), "admin": (200, 404)}),
        (["api"], ["admin"], {"none": (401, 401), "api": (200, 401), "admin": (200, 404)}),
    ],
)
def test_an_admin_key_opens_both_and_an_api_key_admin_only_where_there_is_no_other(
    api_keys: list[str], admin_keys: list[str], opens: dict[str, tuple[int, int]]
) -> None:
    """There are no routes below /admin here: what passes is answered 404."""
    engine = ScriptedEngine()
    config = HotdraftConfig(target="tiny-chat")
    metrics = ServingMetrics(engine, "tiny-chat")
    app = create_app(engine, config, metrics=metrics, api_keys=api_keys, admin_keys=admin_keys)
    with served(app) as url:
        for key, statuses in opens.items():
            headers = {} if key == "none" else {"Authorization": f"Bearer {key}"}
            got = [httpx.get(url + path, headers=headers).status_code for path in ("/v1/models", "/admin/status")]
            assert tuple(got) == statuses, key


def test_what_others_reach_has_an_admin_key_or_says_that_it_has_none() -> None:
    for host in ("0.0.0.0", "::", "10.0.0.7", "gpu-box", ""):
        with pytest.raises(ConfigError, match=r"set server\.admin_keys or .*, or server\.open_admin"):
            read_admin_keys(ServerConfig(host=host, api_keys=["key"]))
        assert read_admin_keys(ServerConfig(host=host, admin_keys=["own"])) == ["own"]
        assert read_admin_keys(ServerConfig(host=host, open_admin=True)) == []
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        assert read_admin_keys(ServerConfig(host=host)) == []


@pytest.mark.parametrize("declared", [True, False])
def test_large_bodies_are_refused(guarded: str, declared: bool) -> None:
    body = b'{"model": "tiny-chat", "prompt": "' + b"x" * 1000 + b'"}'
    content = body if declared else iter([body[:600], body[600:]])
    headers = {"Authorization": "Bearer first-key", "Content-Type": "application/json"}
    reply = httpx.post(f"{guarded}/v1/completions", content=content, headers=headers)
    assert reply.status_code == 413
    assert reply.json()["error"]["message"] == "The body is larger than 1000 bytes."


def test_large_bodies_take_turns_and_small_ones_go_on(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "LARGE_BYTES_A_SECOND", 1.0)
    large, small = ({"model": "tiny-chat", "prompt": "hello", "user": "x" * size} for size in (100_000, 10))
    statuses = [httpx.post(f"{url}/v1/completions", json=body).status_code for body in (large, large, small)]
    assert statuses == [200, 503, 200]
    refused = httpx.post(f"{url}/v1/completions", json=large)
    assert refused.json()["error"]["message"] == "Too many large bodies wait to be read."
    assert refused.headers["retry-after"] == "5"


def test_request_ids_come_back(url: str) -> None:
    assert httpx.get(f"{url}/health", headers={"X-Request-Id": "trace-7"}).headers["x-request-id"] == "trace-7"
    own = httpx.get(f"{url}/health", headers={"X-Request-Id": "x" * 200}).headers["x-request-id"]
    assert len(own) == 32


def test_answers_are_counted_by_status(url: str) -> None:
    httpx.get(f"{url}/v1/models")
    httpx.get(f"{url}/v1/models/none")
    text = httpx.get(f"{url}/metrics").text
    assert 'http_requests_total{handler="/v1/models",method="GET",status="200"}' in text
    assert 'http_requests_total{handler="/v1/models/{name:path}",method="GET",status="404"}' in text
    assert 'handler="/health"' not in text


def test_methods_that_http_does_not_name_become_no_labels(guarded: str) -> None:
    replies = [httpx.request(f"ZZ{number}", f"{guarded}/v1/models") for number in range(5)]
    assert {reply.status_code for reply in replies} == {405}
    assert replies[0].json()["error"]["code"] == "unknown_method"
    assert "ZZ" not in httpx.get(f"{guarded}/metrics").text


def test_paths_with_a_slash_too_many_become_no_labels(guarded: str) -> None:
    replies = [httpx.get(f"{guarded}/docs/page-{number}/") for number in range(5)]
    assert {reply.status_code for reply in replies} == {404}
    assert "page-" not in httpx.get(f"{guarded}/metrics").text
