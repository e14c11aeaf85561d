"""What a client may do to a server, on purpose or by mistake; each is over when its `with` ends."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import httpx
import numpy as np

from tests.integration.processes import MODEL, Server

PAUSE_SECONDS = 0.05
"""Between two requests of an attacker, who shares the processor with those who measure."""
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def _connect(server: Server, source: str = "127.0.0.1") -> socket.socket:
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    return socket.create_connection(address, timeout=120, source_address=(source, 0))


def _connections(server: Server, number: int, said: bytes) -> Iterator[None]:
    with ExitStack() as clients:
        for _ in range(number):
            client = clients.enter_context(_connect(server))
            with contextlib.suppress(ConnectionError):  # it had to make room already
                client.sendall(said)
        yield


@contextmanager
def silent_connections(server: Server, number: int = 300) -> Iterator[None]:
    yield from _connections(server, number, b"")


@contextmanager
def unfinished_bodies(server: Server, number: int = 60) -> Iterator[None]:
    """A megabyte each of a body of which the rest never comes."""
    said = HEAD + b"Content-Length: 1900000\r\n\r\n" + b'{"prompt": "' + b"x" * 1_000_000
    yield from _connections(server, number, said)


@contextmanager
def asking(server: Server, body: object, clients: int = 2) -> Iterator[list[int]]:
    """Clients that send one body again and again; the statuses that they get."""
    statuses: list[int] = []
    ended = threading.Event()
    content = json.dumps(body).encode()
    request = HEAD + b"Content-Length: %d\r\n\r\n" % len(content) + content

    def ask() -> None:
        while not ended.is_set():
            with _connect(server) as client:
                client.sendall(request)
                statuses.append(int(client.recv(65536).split()[1]))
            ended.wait(PAUSE_SECONDS)

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        ended.set()
        for thread in threads:
            thread.join()


GREEDY = {"model": MODEL, "prompt": "go on", "temperature": 0, "ignore_eos": True}


def many_stop_strings(server: Server) -> AbstractContextManager[list[int]]:
    """A hundred thousand of them, in a megabyte."""
    stops = [f"{number:08d}" for number in range(100_000)]
    return asking(server, {**GREEDY, "n": 32, "max_tokens": 200, "stop": stops})


def allowed_stop_strings(server: Server) -> AbstractContextManager[list[int]]:
    """As many and as long as may be, of the worst kind, for one answer."""
    stops = [f"{'e' * 253}{number:03d}" for number in range(32)]
    return asking(server, {**GREEDY, "max_tokens": 200, "stop": stops}, clients=1)


def long_prompt(server: Server) -> AbstractContextManager[list[int]]:
    """650,000 words."""
    return asking(server, {**GREEDY, "prompt": "word " * 650_000})


def long_prompt_within_the_body_limit(server: Server) -> AbstractContextManager[list[int]]:
    return asking(server, {**GREEDY, "prompt": "word " * 380_000})


def many_token_ids(server: Server) -> AbstractContextManager[list[int]]:
    return asking(server, {**GREEDY, "prompt": [1] * 600_000})


def many_short_prompts(server: Server) -> AbstractContextManager[list[int]]:
    """A thousand, the last of which is none: all are encoded, and nobody has to wait in the queue to hear no."""
    return asking(server, {**GREEDY, "prompt": ["a"] * 1000 + [""]}, clients=8)


def many_biases(server: Server) -> AbstractContextManager[list[int]]:
    """120,000, of which no name is a token and no value a number, in nearly two megabytes."""
    return asking(server, {**GREEDY, "logit_bias": {f"no{number}": "" for number in range(120_000)}})


@contextmanager
def many_answers_to_nobody(server: Server, clients: int = 4) -> Iterator[None]:
    """1,024 answers that a client at another address asks for and does not stay to hear, again and again."""
    ended = threading.Event()
    content = json.dumps({**GREEDY, "prompt": ["go on"] * 8, "n": 128, "max_tokens": 200, "stream": True}).encode()
    request = HEAD + b"Content-Length: %d\r\n\r\n" % len(content) + content

    def ask() -> None:
        while not ended.is_set():
            with _connect(server, "127.0.0.2") as client:
                client.sendall(request)
                ended.wait(PAUSE_SECONDS)

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


ATTACKS: dict[str, Callable[[Server], AbstractContextManager]] = {
    attack.__name__: attack
    for attack in (
        silent_connections,
        unfinished_bodies,
        many_stop_strings,
        allowed_stop_strings,
        long_prompt,
        long_prompt_within_the_body_limit,
        many_token_ids,
        many_short_prompts,
        many_biases,
        many_answers_to_nobody,
    )
}


def others(server: Server, requests: int) -> list[float]:
    """Seconds that another client's requests take, one after another, each on a connection of its own."""
    seconds = []
    for number in range(requests):
        began = time.perf_counter()
        reply = httpx.post(
            f"{server.url}/v1/completions",
            json={**GREEDY, "prompt": f"request {number}", "max_tokens": 16},
            timeout=60.0,
        )
        assert reply.status_code == 200, reply.text
        assert httpx.get(f"{server.url}/health", timeout=60.0).status_code == 200
        seconds.append(time.perf_counter() - began)
    return seconds


def p99(seconds: list[float]) -> float:
    return float(np.percentile(seconds, 99))
