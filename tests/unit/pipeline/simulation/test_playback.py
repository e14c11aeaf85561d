"""Prompts come as fast as they are answered, or so many a second; what the server counted meanwhile is told."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any

import httpx
import pytest

from hotdraft.pipeline.simulation import playback
from hotdraft.pipeline.simulation.playback import COUNTS, Defaults, Outcome, play
from hotdraft.pipeline.traffic.prompts import Prompt

PROMPTS = [Prompt("d", [{"role": "user", "content": str(n)}]) for n in range(6)]


def stand_in(monkeypatch: pytest.MonkeyPatch, send: Callable[..., Any], counts: Iterable[Sequence[float]]) -> None:
    """Of a server: who answers, and what it counts each time that it is asked."""
    told = iter(counts)

    async def served_model(_client: object) -> str:
        return "m"

    async def counted(_client: object) -> dict[str, float]:
        return dict(zip(COUNTS, next(told), strict=True))

    for name, fake in (("send", send), ("served_model", served_model), ("counted", counted)):
        monkeypatch.setattr(playback, name, fake)


@pytest.mark.parametrize("concurrency", [1, 3])
def test_no_request_comes_before_its_time(monkeypatch: pytest.MonkeyPatch, concurrency: int) -> None:
    asked: dict[int, float] = {}

    async def send(_client: object, _model: str, request: int, prompt: Prompt, _defaults: Defaults) -> Outcome:
        asked[request] = time.monotonic()
        return Outcome(request, prompt.domain)

    stand_in(monkeypatch, send, repeat([0.0] * len(COUNTS)))
    began = time.monotonic()
    found = asyncio.run(
        play(
            "http://x",
            PROMPTS,
            concurrency=concurrency,
            defaults=Defaults(),
            on_outcome=lambda _: None,
            request_rate=50.0,
        )
    )
    assert [outcome.request for outcome in found.outcomes] == [1, 2, 3, 4, 5, 6]
    assert all(asked[n] - began >= (n - 1) / 50.0 for n in asked)


def test_a_server_that_began_anew_meanwhile_is_told_of_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    async def send(_client: object, _model: str, request: int, prompt: Prompt, _defaults: Defaults) -> Outcome:
        return Outcome(request, prompt.domain)

    for after, told in (((7.0, 3.0, 15.0, 24.0), (2, 1, 1.4 * 2)), ((1.0, 0.0, 2.0, 3.0), (1, 0, 1.5))):
        stand_in(monkeypatch, send, [(5.0, 2.0, 10.0, 10.0), after])
        found = asyncio.run(
            play("http://x", PROMPTS, concurrency=1, defaults=Defaults(), on_outcome=lambda _: None)
        )
        assert (found.swaps, found.adapters_rejected, found.speedup) == told


PLAIN = httpx.Response(404, json={"detail": "Not Found"})
EARLY = httpx.Response(404, json={"error": {"message": "No finished request r is known.", "code": "not_found"}})


@pytest.mark.parametrize(
    ("answers", "counts"), [([PLAIN], None), ([EARLY, httpx.Response(200, json={"rounds": 1})], {"rounds": 1})]
)
def test_counts_are_waited_for_where_hotdraft_runs_and_not_at_a_plain_vllm(
    answers: list[httpx.Response], counts: dict[str, int] | None
) -> None:
    told = iter(answers)

    async def ask() -> dict[str, Any] | None:
        transport = httpx.MockTransport(lambda _: next(told))
        async with httpx.AsyncClient(base_url="http://x", transport=transport) as client:
            return await playback.counts_beside(client, "r")

    assert asyncio.run(ask()) == counts
