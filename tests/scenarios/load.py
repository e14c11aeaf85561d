"""Many streaming clients at once, and what became of each of their requests."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx

LEAVING = 20
"""Of so many clients one hangs up in the middle of whatever it asks; the first is."""


@dataclass
class Outcome:
    """Requests by what became of them.

    `200` is a stream that ended with [DONE] and a finish reason, other numbers are statuses, `told 503` a
    stream that ended with such an error, `left` a client that hung up, `refused` a connection that the server
    did not take, `broken: …` a request that was accepted and never answered in full.
    """

    counts: Counter[str] = field(default_factory=Counter)
    first_tokens: list[float] = field(default_factory=list)
    """Seconds to the first chunk with text, of each stream."""
    completion_tokens: int = 0


MIXTURE: list[dict[str, Any]] = [
    {},
    {"temperature": 0},
    {"temperature": 0.7, "top_p": 0.9},
    {"logprobs": True, "top_logprobs": 3},
    {"n": 2, "temperature": 1.2},
    {"stop": ["e", "zz"]},
    {"presence_penalty": 0.5, "top_k": 20},
    {"store": False},
]
"""What requests of a mixed crowd ask for beside the rest, each as often."""


async def load(
    url: str, model: str, *, clients: int, seconds: float, max_tokens: int = 48, mixed: bool = False
) -> Outcome:
    """`clients` that ask one request after another for `seconds`, and wait a moment where they are told to."""
    outcome = Outcome()
    until = time.monotonic() + seconds
    asked = (model, until, max_tokens, mixed, outcome)
    crowd = [(random.Random(number), number % LEAVING == 0) for number in range(clients)]
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=120.0) as http:
        await asyncio.gather(*(_client(http, chance, leaves, *asked) for chance, leaves in crowd))
    return outcome


async def _client(
    http: httpx.AsyncClient,
    chance: random.Random,
    leaves: bool,
    model: str,
    until: float,
    max_tokens: int,
    mixed: bool,
    outcome: Outcome,
) -> None:
    while time.monotonic() < until:
        wanted = {"max_tokens": max_tokens, **(chance.choice(MIXTURE) if mixed else {})}
        what = await _request(http, model, chance, leaves, wanted, outcome)
        outcome.counts[what] += 1
        if what == "refused":
            return
        if what == "503":
            await asyncio.sleep(chance.uniform(0.2, 1.0))


async def _request(
    http: httpx.AsyncClient,
    model: str,
    chance: random.Random,
    leaves: bool,
    wanted: dict[str, Any],
    outcome: Outcome,
) -> str:
    leaves_after = chance.randint(1, 5) if leaves else None
    words = " ".join(chance.choices(["alpha", "beta", "gamma", "delta", "epsilon"], k=chance.randint(2, 8)))
    body = {
        "model": model,
        "messages": [{"role": "user", "content": words}],
        "seed": chance.getrandbits(32),
        "stream": True,
        "stream_options": {"include_usage": True},
        **wanted,
    }
    began = time.monotonic()
    chunks, spoken, finished = 0, False, False
    try:
        async with http.stream("POST", "/v1/chat/completions", json=body) as reply:
            if reply.status_code != 200:
                await reply.aread()
                return str(reply.status_code)
            async for data in _events(reply):
                if data == "[DONE]":
                    return "200" if finished else "broken: no finish reason"
                event = json.loads(data)
                if "error" in event:
                    return "told 503" if event["error"]["code"] == "cancelled" else f"broken: {event['error']}"
                if event["usage"]:
                    outcome.completion_tokens += event["usage"]["completion_tokens"]
                for choice in event["choices"]:
                    finished = finished or choice["finish_reason"] is not None
                    if choice["delta"].get("content") and not spoken:
                        outcome.first_tokens.append(time.monotonic() - began)
                        spoken = True
                    chunks += 1
                if leaves_after is not None and chunks > leaves_after:
                    return "left"
    except httpx.ConnectError:
        return "refused"
    except httpx.HTTPError as error:
        return f"broken: {type(error).__name__}"
    return "broken: no [DONE]"


async def _events(reply: httpx.Response) -> AsyncIterator[str]:
    """The data of server-sent events; httpx's own lines also end at characters that texts may have in them."""
    held = b""
    async for part in reply.aiter_raw():
        *events, held = (held + part).split(b"\n\n")
        for event in events:
            yield event.decode().removeprefix("data: ")
