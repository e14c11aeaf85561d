"""Pages of other sites, and names that are not this server's."""

from collections.abc import Iterator

import httpx
import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.serving.http.app import create_app
from hotdraft.serving.metrics.listener import ServingMetrics
from tests.served_app import served
from tests.unit.serving.http.scripted import ScriptedEngine

JSON = {"Content-Type": "application/json"}
BODY = b'{"model": "tiny-chat", "prompt": "hello"}'
PASSED = {"/v1/completions": 200, "/admin/jobs": 404}
"""What is answered where nothing refuses: there are no admin routes here."""


@pytest.fixture(scope="module")
def named() -> Iterator[str]:
    engine = ScriptedEngine()
    config = HotdraftConfig(target="tiny-chat", server={"allowed_hosts": "server, llm.example.com,*.svc"})
    with served(create_app(engine, config, metrics=ServingMetrics(engine, "tiny-chat"))) as url:
        yield url


def post(url: str, path: str, **headers: str) -> httpx.Response:
    return httpx.post(url + path, content=BODY, headers={name.replace("_", "-"): v for name, v in headers.items()})


@pytest.mark.parametrize("path", PASSED)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content_Type": "text/plain"},
        {"Content_Type": "text/plain;application/json"},
        {"Content_Type": "application/x-www-form-urlencoded"},
        {"Content_Type": "multipart/form-data; boundary=x"},
    ],
)
def test_a_post_that_any_page_can_send_is_refused(named: str, path: str, headers: dict[str, str]) -> None:
    for origin in ({}, {"Origin": named}):  # browsers tell neither the origin nor the site everywhere
        reply = post(named, path, **headers, **origin)
        assert (reply.status_code, reply.json()["error"]["code"]) == (415, "content_type")


@pytest.mark.parametrize("path", PASSED)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "http://127.0.0.1:3000"},
        {"Origin": "http://llm.example.com:3000"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example", "Authorization": "Bearer any"},
    ],
)
def test_pages_of_other_sites_change_nothing(named: str, path: str, method: str, headers: dict[str, str]) -> None:
    reply = httpx.request(method, named + path, content=BODY, headers={**JSON, **headers})
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "foreign_origin")


@pytest.mark.parametrize("path", PASSED)
def test_programs_and_our_own_page_go_on(named: str, path: str) -> None:
    host = named.removeprefix("http://")
    for headers in (
        {},
        {"Content-Type": "Application/JSON; charset=utf-8"},
        {"Origin": named, "Sec-Fetch-Site": "same-origin"},
        {"Origin": "https://llm.example.com", "Sec-Fetch-Site": "none"},  # a proxy in front tells its own Host
        {"Origin": "http://localhost", "Host": "localhost:80"},
        {"Origin": "https://LLM.example.com:443", "Host": "llm.example.com"},
        {"Origin": f"https://{host}"},  # a proxy in front speaks TLS
    ):
        assert httpx.post(named + path, content=BODY, headers={**JSON, **headers}).status_code == PASSED[path], (
            headers
        )
    for beside in ("Bearer key", "Basic x"):  # which no page sends without being asked either
        assert post(named, "/admin/jobs", Authorization=beside).status_code == 404
    assert httpx.get(f"{named}/v1/models", headers={"Origin": "http://evil.example"}).status_code == 200, (
        "unreadable"
    )


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/admin/status", "/dashboard"])
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "xsvc", "svc", "["]
)
def test_a_name_that_is_not_the_servers_is_refused(named: str, path: str, host: str) -> None:
    reply = httpx.get(named + path, headers={"Host": host})
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "unknown_host")
    assert "server.allowed_hosts" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "10.1.2.3:8000", "[::1]:8000", "0.0.0.0:1", "localhost:8000", "LOCALHOST", "a.localhost"),
        *("server:8000", "llm.example.com", "llm.example.com.:80", "hotdraft.default.svc"),
    ],
)
def test_addresses_localhost_and_allowed_names_are_its_own(named: str, host: str) -> None:
    assert httpx.get(f"{named}/metrics", headers={"Host": host}).status_code == 200


def test_a_star_allows_every_name_and_no_foreign_page() -> None:
    engine = ScriptedEngine()
    config = HotdraftConfig(target="tiny-chat", server={"allowed_hosts": ["*"]})
    with served(create_app(engine, config, metrics=ServingMetrics(engine, "tiny-chat"))) as url:
        assert httpx.get(f"{url}/health", headers={"Host": "any.example"}).status_code == 200
        headers = {**JSON, "Host": "any.example"}
        for origin, status in (("http://any.example", 404), ("http://evil.example", 403)):
            reply = httpx.post(f"{url}/admin/jobs", headers={**headers, "Origin": origin})
            assert reply.status_code == status
