"""By whom the engine is told that it is asked."""

import httpx
import pytest
from starlette.requests import Request

from hotdraft.pipeline.config.serving import ServerConfig
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.serving.http.app import create_app
from hotdraft.serving.http.client_identity import client_identity
from hotdraft.serving.metrics.listener import ServingMetrics
from tests.served_app import served
from tests.unit.serving.http.scripted import USER, ScriptedEngine


def identity(host: str, config: ServerConfig | None = None, authorization: str = "") -> str:
    headers = [(b"authorization", authorization.encode())]
    return client_identity(
        Request({"type": "http", "client": (host, 1), "headers": headers}), config or ServerConfig()
    )


def test_the_engine_hears_which_address_asks(client, engine):
    client.chat.completions.create(model="tiny-chat", messages=USER, n=2)
    assert [request.client for request in engine.requests] == ["127.0.0.1"] * 2


def test_where_keys_are_asked_for_the_key_is_the_client_and_does_not_stand_in_clear():
    engine = ScriptedEngine()
    config = HotdraftConfig(target="tiny-chat", server={"api_keys": "key-one,key-two"})
    app = create_app(engine, config, metrics=ServingMetrics(engine, "tiny-chat"), api_keys=["key-one", "key-two"])
    body = {"model": "tiny-chat", "messages": USER}
    with served(app) as url:
        for authorization in ("Bearer key-one", "bearer  key-one", "Bearer key-two"):
            headers = {"Authorization": authorization}
            assert httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers).status_code == 200
    one, again, two = (request.client for request in engine.requests)
    assert one == again != two
    assert "key" not in one + two


def test_without_keys_a_header_of_its_choice_makes_nobody_another_client():
    assert identity("203.0.113.9", authorization="Bearer a") == identity("203.0.113.9", authorization="Bearer b")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:203.0.113.9", "::ffff:203.0.113.10", False),
        ("203.0.113.9", "203.0.113.10", False),
    ],
)
def test_a_network_of_one_subscriber_is_one_client(one, other, same):
    assert (identity(one) == identity(other)) == same


def test_a_peer_without_an_address_is_some_client():
    assert identity("") == ""
    assert client_identity(Request({"type": "http", "client": None, "headers": []}), ServerConfig()) == ""


@pytest.mark.parametrize(
    ("keys", "share", "apart"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_answers_help_to_guess_those_of_the_same_key_and_salt(keys: bool, share: bool, apart: bool) -> None:
    engine = ScriptedEngine()
    server = {"api_keys": "key-one,key-two"} if keys else {}
    config = HotdraftConfig(target="tiny-chat", server=server, engine={"share_answers": share})
    accepted = ["key-one", "key-two"] if keys else []
    app = create_app(engine, config, metrics=ServingMetrics(engine, "tiny-chat"), api_keys=accepted)
    with served(app) as url:
        for key, salt in (
            ("key-one", None),
            ("key-two", None),
            ("key-one", "s"),
            ("key-one", "s"),
            ("key-one", "t"),
        ):
            body = {"model": "tiny-chat", "messages": USER, "cache_salt": salt}
            headers = {"Authorization": f"Bearer {key}"}
            assert httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers).status_code == 200
    one, two, salted, again, other = (request.scope for request in engine.requests)
    assert (one != two) == apart
    assert len({one, salted, other}) == 3
    assert salted == again
    assert {scope.partition(":")[0] for scope in (salted, other)} == {one}, "a salt makes no other owner"
    assert not {"key", "s", "t"} & {one, *salted.split(":")}
