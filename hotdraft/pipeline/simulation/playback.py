"""Plays prompts at a stated concurrency through a hotdraft server and keeps what each request did."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from hotdraft.pipeline.traffic.prompts import Prompt

REQUEST_SECONDS = 900.0
COUNTS_SECONDS = 10.0
THIS_MACHINE = ("127.0.0.1", "localhost", "::1")
"""Hosts that no proxy which the environment names can reach."""
COUNTS = (
    "hotdraft_swaps_total",
    "hotdraft_adapters_rejected_total",
    "hotdraft_decode_seconds_total",
    "hotdraft_plain_decode_seconds_total",
)


@dataclass(frozen=True)
class Outcome:
    """What one request did. All counts are 0 where `error` is set."""

    request: int
    """Place in the traffic, from 1."""
    domain: str
    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_version: int = 0
    """Adapter version that drafted when the request finished; 0 is none."""
    error: str | None = None
    accepted_guesses: int = 0
    """Of tokens that no model drafted."""


@dataclass(frozen=True)
class Playback:
    """A played traffic: outcomes in the order of completion, and what the server counted meanwhile."""

    outcomes: list[Outcome]
    swaps: int
    adapters_rejected: int
    speedup: float | None
    """Over k = 0, by the costs that the server measured; None if it has none."""
    wall_seconds: float
    interrupted: bool = False
    """By Ctrl-C: outcomes are those until then."""


@dataclass(frozen=True)
class Defaults:
    """What prompts that do not say otherwise ask for."""

    max_tokens: int = 64
    temperature: float = 0.0


async def play(
    base_url: str,
    prompts: Sequence[Prompt],
    *,
    concurrency: int,
    defaults: Defaults,
    on_outcome: Callable[[Outcome], None],
    api_key: str | None = None,
    request_rate: float = math.inf,
) -> Playback:
    """Send `prompts` in order, `concurrency` at once; a failed request is an outcome, not an exception.

    No more than `request_rate` come a second, evenly. A cancellation ends it with what there is.

    Raises `httpx.HTTPError` when the server cannot be reached at all, or does not answer as hotdraft does.
    """
    outcomes: list[Outcome] = []
    waiting = iter(enumerate(prompts, start=1))
    limits = httpx.Limits(max_connections=concurrency + 1)
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    interrupted = False
    through_proxy = httpx.URL(base_url).host not in THIS_MACHINE
    async with httpx.AsyncClient(
        base_url=base_url, timeout=REQUEST_SECONDS, limits=limits, headers=headers, trust_env=through_proxy
    ) as client:
        model = await served_model(client)
        before = after = await counted(client)
        started = time.monotonic()

        async def send_next() -> None:
            for request, prompt in waiting:
                await asyncio.sleep(started + (request - 1) / request_rate - time.monotonic())
                outcome = await send(client, model, request, prompt, defaults)
                outcomes.append(outcome)
                on_outcome(outcome)

        try:
            await asyncio.gather(*(send_next() for _ in range(concurrency)))
        except asyncio.CancelledError:
            interrupted = True
        wall_seconds = time.monotonic() - started
        with suppress(httpx.HTTPError):  # a server that died has failed requests to tell of it
            after = await counted(client)
    swaps, rejected, seconds, plain_seconds = (_grown(before[name], after[name]) for name in COUNTS)
    speedup = plain_seconds / seconds if seconds else None
    return Playback(outcomes, int(swaps), int(rejected), speedup, wall_seconds, interrupted)


def _grown(before: float, after: float) -> float:
    """Of a counter, which begins anew with its server."""
    return after - before if after >= before else after


async def send(client: httpx.AsyncClient, model: str, request: int, prompt: Prompt, defaults: Defaults) -> Outcome:
    """One chat completion."""
    body: dict[str, Any] = {
        "model": model,
        "messages": prompt.messages,
        "max_tokens": defaults.max_tokens if prompt.max_tokens is None else prompt.max_tokens,
        "temperature": defaults.temperature if prompt.temperature is None else prompt.temperature,
        "metadata": {"domain": prompt.domain},
    }
    try:
        response = await client.post("/v1/chat/completions", json=body)
    except httpx.HTTPError as error:
        return Outcome(request, prompt.domain, error=f"{type(error).__name__}: {error}")
    if response.status_code != 200:
        return Outcome(request, prompt.domain, error=f"HTTP {response.status_code}: {response.text[:500]}")
    try:
        answer = response.json()
        counts = answer.get("hotdraft") or await counts_beside(client, answer["id"])
        if counts is None:
            return Outcome(request, prompt.domain, error='the response has no "hotdraft" field')
        return _served(request, prompt.domain, answer, counts)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        said = f"no chat completion ({type(error).__name__}: {error}): {response.text[:200]}"
        return Outcome(request, prompt.domain, error=said)


def _served(request: int, domain: str, answer: Mapping[str, Any], counts: Mapping[str, Any]) -> Outcome:
    return Outcome(
        request,
        domain,
        tokens=int(answer["usage"]["completion_tokens"]),
        rounds=int(counts["rounds"]),
        drafted=int(counts["drafted_tokens"]),
        accepted=int(counts["accepted_tokens"]),
        accepted_guesses=int(counts.get("accepted_guesses", 0)),
        draft_version=int(counts["draft_version"]),
    )


async def counts_beside(client: httpx.AsyncClient, request_id: str) -> dict[str, Any] | None:
    """What vLLM's workers counted of an answered request; None where no hotdraft runs in it."""
    deadline = time.monotonic() + COUNTS_SECONDS
    while time.monotonic() < deadline:
        with suppress(httpx.HTTPError):
            response = await client.get(f"/hotdraft/requests/{request_id}")
            if response.status_code == 200:
                return response.json()
            if response.status_code == 404 and "not_found" not in response.text:  # hotdraft's may yet come
                return None
        await asyncio.sleep(0.05)
    return None


async def served_model(client: httpx.AsyncClient) -> str:
    """The name to ask the server's model by. Raises `httpx.HTTPError` where none is told."""
    response = await client.get("/v1/models")
    response.raise_for_status()
    try:
        return str(response.json()["data"][0]["id"])
    except (ValueError, LookupError, TypeError) as error:
        raise httpx.DecodingError("/v1/models names no model", request=response.request) from error


async def counted(client: httpx.AsyncClient) -> dict[str, float]:
    """What the server counted since it started, by `COUNTS`. Raises `httpx.HTTPError` where it does not say."""
    response = await client.get("/metrics")
    response.raise_for_status()
    totals = dict.fromkeys(COUNTS, 0.0)
    try:
        families = [*text_string_to_metric_families(response.text)]
    except ValueError as error:
        raise httpx.DecodingError("/metrics is not in Prometheus's format", request=response.request) from error
    for family in families:
        for sample in family.samples:
            if sample.name in totals:
                totals[sample.name] += sample.value
    return totals
