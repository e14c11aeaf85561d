"""What clients say of their traffic reaches the workers, and our pages are below /hotdraft."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient

from hotdraft.serving.vllm.front.front_door import FrontDoor, tagged

CHAT = {"model": "m", "messages": [{"role": "user", "content": "héllo"}]}


def xargs(body: dict[str, Any], header: str | None = None) -> dict[str, Any]:
    return json.loads(tagged(json.dumps(body).encode(), header, "client"))["vllm_xargs"]


def test_the_domain_is_the_bodys_before_the_headers() -> None:
    assert xargs({**CHAT, "metadata": {"domain": "sql"}}, "maths")["hotdraft_domain"] == "sql"
    assert xargs(CHAT, "maths")["hotdraft_domain"] == "maths"
    assert "hotdraft_domain" not in xargs(CHAT)
    assert "hotdraft_domain" not in xargs({**CHAT, "metadata": {"domain": 3}})


def test_what_is_not_to_be_stored_says_so_to_the_workers_and_nobody_speaks_for_another_client() -> None:
    for no in (False, "false", "no", "Off", 0, 0.0):  # as our own server reads it
        assert xargs({**CHAT, "store": no})["hotdraft_store"] == 0
    for other in (True, "yes", None, {}, "nothing"):
        assert "hotdraft_store" not in xargs({**CHAT, "store": other})
    told = xargs({**CHAT, "vllm_xargs": {"hotdraft_client": "somebody", "mine": 1}})
    assert told == {"hotdraft_client": "client", "mine": 1}


def test_a_salt_is_told_to_the_workers_as_such_and_not_what_it_is() -> None:
    assert xargs({**CHAT, "cache_salt": "mine"}) == {"hotdraft_client": "client", "hotdraft_salted": 1}


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"3", b'{"vllm_xargs": 4}', b"[" * 100_000, b"\xff"])
def test_what_is_no_request_goes_on_as_it_came(body: bytes) -> None:
    assert tagged(body, "sql", "client") == body


@pytest.fixture
def vllm() -> tuple[FastAPI, list[str]]:
    app, ended = FastAPI(), []
    ours = FastAPI()

    @app.post("/v1/chat/completions")
    @app.post("/v1/chat/completions/batch")
    @app.post("/v1/messages")
    @app.post("/v1/responses")
    async def chat(request: Request) -> dict[str, Any]:
        return {"said": await request.json(), "length": request.headers["content-length"]}

    @app.get("/health")
    async def health() -> str:
        return "vllm"

    @ours.get("/")
    @ours.get("/status")
    async def status() -> str:
        return "hotdraft"

    async def end() -> None:
        ended.append("ended")

    made: Callable[[], FastAPI] = lambda: ours  # noqa: E731
    app.add_middleware(FrontDoor, ours=made, client_identity=lambda request: "client", before_end=end)
    return app, ended


def test_requests_pass_the_door_whole(vllm: tuple[FastAPI, list[str]]) -> None:
    app, ended = vllm
    with TestClient(app) as client:
        answer = client.post("/v1/chat/completions", json=CHAT, headers={"X-Hotdraft-Domain": "sql"}).json()
        assert answer["said"] == {**CHAT, "vllm_xargs": {"hotdraft_client": "client", "hotdraft_domain": "sql"}}
        assert int(answer["length"]) == len(json.dumps(answer["said"]).encode())
        assert client.get("/health").json() == "vllm"
        assert client.get("/hotdraft/status").json() == "hotdraft"
        assert client.get("/hotdraft/nothing").status_code == 404
        assert client.get("/hotdrafts").status_code == 404
        assert not ended
    assert ended == ["ended"]


def test_a_body_that_comes_in_pieces_is_one(vllm: tuple[FastAPI, list[str]]) -> None:
    body = json.dumps(CHAT).encode()
    with TestClient(vllm[0]) as client:
        pieces = iter([body[:5], b"", body[5:]])
        said = client.post("/v1/chat/completions", content=pieces).json()["said"]
    assert said == {**CHAT, "vllm_xargs": {"hotdraft_client": "client"}}


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/v1/chat/completions/batch"])
def test_what_is_not_to_be_stored_is_not_recorded_by_whatever_path_it_comes(
    vllm: tuple[FastAPI, list[str]], path: str
) -> None:
    with TestClient(vllm[0]) as client:
        said = client.post(path, json={"input": "a secret", "store": False}).json()["said"]
    assert said["vllm_xargs"] == {"hotdraft_client": "client", "hotdraft_store": 0}


def test_behind_a_proxy_that_leaves_its_prefix_the_door_knows_the_same_paths(
    vllm: tuple[FastAPI, list[str]],
) -> None:
    app, _ = vllm
    app.root_path = "/api"
    with TestClient(app) as client:
        for prefix in ("", "/api"):
            said = client.post(f"{prefix}/v1/chat/completions", json=CHAT).json()["said"]
            assert said["vllm_xargs"] == {"hotdraft_client": "client"}
            assert client.get(f"{prefix}/hotdraft/status").json() == "hotdraft"
            assert client.get(f"{prefix}/hotdraft").url.path == f"{prefix}/hotdraft/"
