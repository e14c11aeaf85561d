"""Connections that keep silent, dawdle, or come in too great a number, over real sockets."""

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import Mock

import httpx
import pytest
from uvicorn import Server

from hotdraft.pipeline.config.serving import ServerConfig
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.serving.http.app import create_app
from hotdraft.serving.http.connections import ACCEPTS_A_TURN, LINGER_SECONDS, Connections
from hotdraft.serving.http.logs import Throttle
from hotdraft.serving.metrics.listener import ServingMetrics
from hotdraft.serving.metrics.state_metrics import Sources
from tests.served_app import running
from tests.unit.serving.http.scripted import ScriptedEngine

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY = json.dumps({"model": "tiny-chat", "prompt": "hello", "stream": True}).encode()


class Guarded:
    """A served engine, and its connections."""

    def __init__(self, url: str, engine: ScriptedEngine, connections: Connections, runner: Server) -> None:
        self.url, self.engine, self.connections, self.runner = url, engine, connections, runner

    def connect(self, said: bytes = b"") -> socket.socket:
        address = ("127.0.0.1", int(self.url.rpartition(":")[2]))
        client = socket.create_connection(address, timeout=10)
        client.sendall(said)
        return client

    def until(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not reached() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert reached()


@contextmanager
def guarded(
    limit: int, header_seconds: float = 60, body_seconds: float = 60, last_words_seconds: int = 1
) -> Iterator[Guarded]:
    engine = ScriptedEngine()
    server = {"header_seconds": header_seconds, "body_seconds": body_seconds}
    config = HotdraftConfig(target="tiny-chat", server=server)
    connections = Connections(config.server, limit)
    metrics = ServingMetrics(engine, "tiny-chat", Sources(connections=connections))
    app = create_app(engine, config, metrics=metrics)
    options = {"http": connections.protocol, "timeout_graceful_shutdown": last_words_seconds}
    with running(app, **options) as (url, runner):
        yield Guarded(url, engine, connections, runner)


def rest(client: socket.socket) -> bytes:
    """What comes until the other side closes."""
    received = b""
    while part := client.recv(65536):
        received += part
    return received


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "reason", "answer"),
    [
        (b"", "headers", b""),
        (b"GET /health HT", "headers", b"HTTP/1.1 408 "),
        (HEAD + b"Content-Length: 100\r\n\r\n", "body", b"HTTP/1.1 408 "),
        (HEAD + b"Content-Length: 100\r\n\r\n" + BODY[:50], "body", b"HTTP/1.1 408 "),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{", "body", b"HTTP/1.1 408 "),
        (b"GET /health HTTP/1.1\r\nHost: a.localhost\r\n\r\nGET /hea", "headers", b"HTTP/1.1 200 "),
    ],
    ids=["silent", "half a line", "no body", "half a body", "half a chunk", "a second request"],
)
def test_a_request_that_does_not_come_to_its_end_is_ended(said: bytes, reason: str, answer: bytes) -> None:
    seconds = {"headers": {"header_seconds": 0.2}, "body": {"body_seconds": 0.2}}[reason]
    with guarded(limit=9, **seconds) as server, server.connect(said) as client:
        assert rest(client).startswith(answer)
        assert server.connections.closed == {reason: 1}
        server.until(lambda: server.connections.open == 0 and not server.connections.waiting)
        text = httpx.get(f"{server.url}/metrics").text
        assert f'hotdraft_connections_closed_total{{model_name="tiny-chat",reason="{reason}"}} 1.0' in text
        assert not server.engine.requests


@pytest.mark.slow
def test_a_byte_now_and_then_moves_no_deadline() -> None:
    with guarded(limit=9, header_seconds=0.5) as server, server.connect(b"GET / HTTP/1.1\r\n") as client:
        with pytest.raises((ConnectionError, TimeoutError)):  # noqa: PT012
            for _ in range(100):
                client.sendall(b"a: b\r\n")
                time.sleep(0.05)
        assert server.connections.closed == {"headers": 1}


def test_what_takes_long_to_answer_has_no_deadline() -> None:
    with guarded(limit=9, header_seconds=0.1, body_seconds=0.1) as server:
        server.engine.ending = None
        head = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY)
        with server.connect(head + BODY) as client:
            server.until(lambda: bool(server.engine.requests))
            time.sleep(0.5)
            assert server.connections.closed == {}
            assert client.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_a_client_that_takes_nothing_of_its_answer_is_left() -> None:
    with guarded(limit=9, body_seconds=0.3) as server:
        server.engine.script = ("x" * 100_000,) * 200
        head = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY)
        with server.connect(head + BODY):
            server.until(lambda: server.connections.closed == {"answer": 1})
            server.until(lambda: server.connections.open == 0)


def test_those_that_ask_for_nothing_make_room_for_those_that_do() -> None:
    with guarded(limit=4) as server, ExitStack() as clients:
        head = HEAD + b"Content-Length: 100\r\n\r\n"
        for said in (b"", b"GET / HT", head):
            clients.enter_context(server.connect(said))
        server.until(lambda: server.connections.open == 3)
        server.engine.ending = None
        for number in range(1, 5):
            body = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
            clients.enter_context(server.connect(body))
            server.until(lambda number=number: len(server.engine.requests) == number)
        assert server.connections.closed == {"crowded": 3}
        assert server.connections.open == 4
        with server.connect(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") as late:
            answer = rest(late)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"] == "All connections are in use."
        assert server.connections.closed == {"crowded": 3, "full": 1}
        assert not any(event.is_set() for event in server.engine.cancelled.values())


def test_of_a_crowd_that_is_sent_away_in_one_turn_few_stay_to_read_why() -> None:
    connections = Connections(ServerConfig(), limit=0)
    crowd = [Mock() for _ in range(3 * ACCEPTS_A_TURN)]
    for newcomer in crowd:
        connections.refuse(newcomer)
    assert [one for one in crowd if one.transport.abort.called] == crowd[:-ACCEPTS_A_TURN]


@pytest.mark.slow
def test_unfinished_bodies_hold_no_more_than_they_may_together() -> None:
    with guarded(limit=99) as server, ExitStack() as clients:
        server.connections.max_bytes = 100_000
        head = HEAD + b"Content-Length: 1000000\r\n\r\n"
        first = clients.enter_context(server.connect(head + b"x" * 30_000))
        server.until(lambda: server.connections.bytes > 30_000)
        for _ in range(2):
            clients.enter_context(server.connect(head + b"x" * 30_000))
        server.until(lambda: server.connections.bytes > 90_000)
        assert server.connections.closed == {}
        clients.enter_context(server.connect(head + b"x" * 30_000))
        server.until(lambda: server.connections.closed == {"crowded": 1})
        assert first.recv(1) == b"", "it had been under way for longest"
        assert 90_000 < server.connections.bytes <= 100_000
        body = json.dumps({"model": "tiny-chat", "prompt": "hello", "user": "x" * 9000}).encode()
        headers = {"Content-Type": "application/json"}
        for _ in range(20):
            assert httpx.post(f"{server.url}/v1/completions", content=body, headers=headers).status_code == 200
        server.until(lambda: server.connections.open == 3)


def test_an_idle_connection_is_used_again_and_goes_first() -> None:
    with guarded(limit=2) as server, httpx.Client(base_url=server.url) as client:
        for _ in range(3):
            assert client.get("/health").status_code == 200
        assert server.connections.open == 1
        with server.connect(), server.connect():
            server.until(lambda: server.connections.closed == {"crowded": 1})
            assert client.get("/health").status_code == 200, "by a connection of its own"


def test_a_request_that_crosses_with_the_servers_end_is_told_so() -> None:
    ask = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with guarded(limit=2) as server:
        client = server.connect(ask)
        first = b""
        while not first.endswith(b"}"):
            first += client.recv(65536)
        assert first.startswith(b"HTTP/1.1 200 ")
        server.runner.should_exit = True
        time.sleep(0.5)
        client.sendall(ask)
        time.sleep(0.1)
        answer = rest(client)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"shutting down" in answer


def test_a_request_that_follows_an_answer_under_way_at_the_servers_end_is_told_so() -> None:
    """Closed with the answer, the connection would be reset under the next request, as under no first one."""
    follows = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with guarded(limit=2, last_words_seconds=5) as server:
        server.engine.ending = None
        with server.connect(HEAD + f"Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY) as client:
            assert client.recv(1000).startswith(b"HTTP/1.1 200 ")
            server.runner.should_exit = True
            time.sleep(0.5)
            server.engine.cancel(server.engine.requests[0].request_id)
            answer = b""
            while b"0\r\n\r\n" not in answer:  # what follows may come with it
                answer += client.recv(65536)
            time.sleep(0.1)
            client.sendall(follows)
            time.sleep(0.1)
            answer += rest(client)
    assert b"shutting down" in answer.partition(b"0\r\n\r\n")[2]


def test_a_request_that_is_still_on_its_way_at_the_servers_end_is_told_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with guarded(limit=2) as server, server.connect(HEAD + b"Content-Length: 100\r\n\r\n{") as client:
        server.until(lambda: server.connections.bytes > 0)
        server.runner.should_exit = True
        assert rest(client).startswith(b"HTTP/1.1 503 ")
        server.until(lambda: server.connections.open == 0)
    assert "Traceback" not in caplog.text


def test_who_was_answered_before_its_body_came_is_told_nothing_more_at_the_servers_end() -> None:
    unknown = HEAD.replace(b"v1/completions", b"nowhere") + b"Content-Length: 9\r\n\r\n{"
    with guarded(limit=2) as server, server.connect(unknown) as client:
        first = b""
        while not first.endswith(b"}}"):
            first += client.recv(65536)
        assert first.startswith(b"HTTP/1.1 404 ")
        server.runner.should_exit = True
        assert rest(client) == b""
        server.until(lambda: server.connections.open == 0)


@pytest.mark.slow
@pytest.mark.parametrize("connection", ["close", "keep-alive"])
def test_an_answer_that_is_on_its_way_at_the_servers_end_comes_whole_and_alone(connection: str) -> None:
    with guarded(limit=2, last_words_seconds=5) as server:
        server.engine.script = ("x" * 1_000_000,) * 20
        body = BODY.replace(b"true", b"false")
        head = HEAD + f"Connection: {connection}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with server.connect(head + body) as client:
            answer = client.recv(1000)
            server.runner.should_exit = True
            time.sleep(LINGER_SECONDS + 0.5)
            answer += rest(client)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert len(json.loads(answer.partition(b"\r\n\r\n")[2])["choices"][0]["text"]) > 20_000_000


NOWHERE = HEAD.replace(b"v1/completions", b"nowhere") + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("first", "then", "statuses"),
    [
        (b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n", b"", [b"400"]),
        (NOWHERE + b"no length\r\n", b"", [b"400"]),
        (NOWHERE, b"no length\r\n", [b"404"]),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\0\r\n\r\n", [b"200", b"400"]),
    ],
    ids=["head", "body", "body of what was answered", "second request"],
)
def test_what_is_no_http_is_refused_once_and_without_a_traceback(
    first: bytes, then: bytes, statuses: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("uvicorn.error")
    with guarded(limit=9) as server, server.connect(first) as client:
        logger.setLevel(logging.ERROR)
        logger.addHandler(caplog.handler)
        try:
            answer = client.recv(65536)
            client.sendall(then)
            answer += rest(client)
        finally:
            logger.removeHandler(caplog.handler)
        server.until(lambda: server.connections.open == 0)
    answers = answer.split(b"HTTP/1.1 ")[1:]
    assert [one[:3] for one in answers] == statuses
    assert all(json.loads(one.partition(b"\r\n\r\n")[2]) for one in answers)
    assert not caplog.records


def test_who_was_just_told_why_it_is_left_keeps_no_server_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    with ExitStack() as clients:
        with guarded(limit=2, header_seconds=0.2) as server:
            client = clients.enter_context(server.connect(b"GET /health HT"))
            server.until(lambda: server.connections.closed == {"headers": 1})
        assert rest(client).startswith(b"HTTP/1.1 408 ")
    assert not raised


def test_a_client_whose_leaving_is_not_heard_of_yet_spoils_no_end_of_the_server() -> None:
    with guarded(limit=9) as server:
        client = server.connect(b"GET /health HT")
        server.until(lambda: bool(server.connections.waiting))
        [connection] = server.connections.waiting

        async def end() -> None:  # one turn of the event loop, which hears of clients between them
            client.close()
            connection.shutdown()

        asyncio.run_coroutine_threadsafe(end(), connection.loop).result(10)
        server.until(lambda: server.connections.open == 0)


def test_the_log_says_a_thing_five_times_and_then_for_a_while_no_more(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("tests.throttled")
    throttle = Throttle(burst=3, seconds=1000)
    logger.addFilter(throttle)
    try:
        for number in range(100):
            logger.warning("file %d", number)
            logger.warning("another")
        messages = [record.getMessage() for record in caplog.records]
        assert len(messages) == 6
        assert [text for text in messages if "no more of it" in text] == [
            "file 2 (said 3 times; no more of it for a while)",
            "another (said 3 times; no more of it for a while)",
        ]
    finally:
        logger.removeFilter(throttle)
