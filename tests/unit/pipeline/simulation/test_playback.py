"""Prompts come as fast as they are answered, or so many a second."""

import asyncio
import time

import pytest

from hotdraft.pipeline.simulation import playback
from hotdraft.pipeline.simulation.playback import COUNTS, Defaults, Outcome, play
from hotdraft.pipeline.traffic.prompts import Prompt

PROMPTS = [Prompt("d", [{"role": "user", "content": str(n)}]) for n in range(6)]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_no_request_comes_before_its_time(monkeypatch: pytest.MonkeyPatch, concurrency: int) -> None:
    asked: dict[int, float] = {}

    async def send(_client: object, _model: str, request: int, prompt: Prompt, _defaults: Defaults) -> Outcome:
        asked[request] = time.monotonic()
        return Outcome(request, prompt.domain)

    async def served_model(_client: object) -> str:
        return "m"

    async def counted(_client: object) -> dict[str, float]:
        return dict.fromkeys(COUNTS, 0.0)

    for name, fake in (("send", send), ("served_model", served_model), ("counted", counted)):
        monkeypatch.setattr(playback, name, fake)
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
