"""What the engine says of a request, on its way to a client that may be slow to hear it."""

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from starlette.requests import Request

from hotdraft.serving.http.errors import ApiError
from hotdraft.serving.http.openai.completion import sse_events
from hotdraft.serving.http.openai.logprobs import TokenTexts
from hotdraft.serving.http.openai.response_builder import ChatBuilder
from hotdraft.serving.http.openai.responses import ChatCompletionChunk
from hotdraft.serving.http.openai.token_stream import CLIENT_GONE, TokenStream, unless_gone
from hotdraft.serving.messages.request import (
    FinishReason,
    GenerationRequest,
    OutputDelta,
    RequestStats,
    SamplingParams,
    TokenLogprob,
)
from tests.unit.serving.http.scripted import ScriptedEngine, make_tokenizer

TOKENS = 1000
LOGPROB = TokenLogprob(5, -1.0, ())
STATS = RequestStats(0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0.0, 0.0, 0.0)


class Hasty(ScriptedEngine):
    """Has said all of an answer before anybody could listen: `TOKENS` letters, then how it ends."""

    def submit(self, request: GenerationRequest, on_delta: Callable[[OutputDelta], None]) -> None:
        for count in range(1, TOKENS + 1):
            prompt = (LOGPROB,) if count == 1 else None
            on_delta(OutputDelta("a", (5,), None, replace(STATS, completion_tokens=count), (LOGPROB,), prompt))
        on_delta(OutputDelta("!", (), self.ending, replace(STATS, completion_tokens=TOKENS), ()))

    def cancel(self, request_id: str) -> None:
        pass


def heard(ending: FinishReason, answers: int) -> list[tuple[int, OutputDelta]]:
    async def never() -> Any:
        await asyncio.Event().wait()

    async def scene() -> list[tuple[int, OutputDelta]]:
        client = Request({"type": "http", "headers": []}, never)
        requests = [GenerationRequest(str(index), (5,), SamplingParams()) for index in range(answers)]
        return [one async for one in TokenStream(Hasty(ending=ending), requests, client)]

    return asyncio.run(scene())


def test_of_an_answer_that_nobody_takes_one_piece_is_kept_and_nothing_is_lost() -> None:
    told = heard("length", answers=3)
    assert [index for index, _ in told] == [0, 1, 2]
    for _, delta in told:
        assert delta.text == "a" * TOKENS + "!"
        assert delta.token_ids == (5,) * TOKENS
        assert delta.logprobs == (LOGPROB,) * TOKENS
        assert delta.prompt_logprobs == (LOGPROB,)
        assert (delta.finish_reason, delta.stats.completion_tokens) == ("length", TOKENS)


def test_what_was_said_before_a_failure_is_told_before_it() -> None:
    told = [(delta.text, delta.finish_reason) for _, delta in heard("error", answers=1)]
    assert told == [("a" * TOKENS, None), ("!", "error")]


def test_what_a_slow_reader_missed_with_log_probs_is_written_beside_the_event_loop() -> None:
    writers = set()

    class Watched(ChatBuilder):
        def chunk(self, *args: Any, **extra: Any) -> ChatCompletionChunk:
            writers.add(threading.current_thread())
            return super().chunk(*args, **extra)

    async def scene() -> list[str]:
        client = Request({"type": "http", "headers": []}, asyncio.Event().wait)
        stream = TokenStream(Hasty(), [GenerationRequest("0", (5,), SamplingParams(logprobs=0))], client)
        builder = Watched("0", "tiny", 0, TokenTexts(make_tokenizer()), True)
        return [event async for event in sse_events(stream, builder, n=1, include_usage=False)]

    events = asyncio.run(scene())
    assert json.loads(events[1].removeprefix("data: "))["choices"][0]["delta"]["content"] == "a" * TOKENS + "!"
    assert threading.current_thread() not in writers
    assert writers


def test_who_left_before_its_prompt_was_encoded_is_gone_however_short_that_took() -> None:
    async def gone() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def at_once() -> int:
        return 1

    with pytest.raises(ApiError) as refusal:
        asyncio.run(unless_gone(Request({"type": "http", "headers": []}, gone), at_once()))
    assert refusal.value.status == CLIENT_GONE
