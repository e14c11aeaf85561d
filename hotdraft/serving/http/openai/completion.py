"""A client's choices as one response, or as server-sent events."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from hotdraft.serving.http.errors import ApiError
from hotdraft.serving.http.openai.response_builder import ChoiceText, ResponseBuilder
from hotdraft.serving.http.openai.responses import ClientFinishReason, Envelope, combined, speculation, usage
from hotdraft.serving.http.openai.token_stream import TokenStream
from hotdraft.serving.messages.request import COUNTED, OutputDelta, RequestStats

T = TypeVar("T")

FEW = 8
"""Tokens with log-probs that are written in the event loop: twenty for each take it a millisecond."""

_DONE = "data: [DONE]\n\n"


async def whole_completion(stream: TokenStream, builder: ResponseBuilder, *, n: int) -> str:
    """All choices, `n` to a prompt, in one response, as JSON. Raises `ApiError` if one did not finish.

    Long ones are written beside the event loop, which serves others meanwhile.
    """
    choices: dict[int, ChoiceText] = {}
    stats: dict[int, RequestStats] = {}
    async for index, delta in stream:
        choice = choices.setdefault(index, ChoiceText())
        choice.text += delta.text
        choice.logprobs += delta.logprobs or ()
        choice.prompt_logprobs += delta.prompt_logprobs or ()
        choice.finish_reason, choice.stop_reason = finish_reason(delta), delta.stop_reason
        stats[index] = delta.stats
    is_long = builder.echoes or any(choice.logprobs for choice in choices.values())
    said, total = in_order(choices), combined(in_order(stats), n)
    [written] = await _written(lambda: [builder.whole(said, total)], aside=is_long)
    return written


async def sse_events(
    stream: TokenStream, builder: ResponseBuilder, *, n: int, include_usage: bool, continuous_usage: bool = False
) -> AsyncIterator[str]:
    """Server-sent events of a request, ended by [DONE]; a failure on the way is an event with an error.

    With `include_usage`, as OpenAI defines it, every chunk has a null `usage` but the last, which has
    no choices; with `continuous_usage` too, as vLLM defines it, that of its choice so far. The last chunk with or
    without them says how the request was speculated.
    """

    def usage_so_far(of_choice: RequestStats) -> dict[str, Any]:
        return {"usage": usage(of_choice) if continuous_usage else None} if include_usage else {}

    stats: dict[int, RequestStats] = {}
    try:
        async for index, delta in stream:
            said = ChoiceText(delta.text, finish_reason(delta), delta.stop_reason, list(delta.logprobs or ()))
            if index not in stats:
                told = delta.prompt_logprobs or ()
                nothing_yet = usage_so_far(replace(delta.stats, **dict.fromkeys(COUNTED, 0)))
                opening = partial(builder.opening, index, told, delta.stats, **nothing_yet)
                for chunk in await _written(opening, aside=builder.echoes):
                    yield _event(chunk)
            stats[index] = delta.stats
            if said.finish_reason or said.text or said.logprobs:
                ends = stream.is_finished and not include_usage
                info = {"hotdraft": speculation(combined(in_order(stats), n))} if ends else {}
                chunk_of = partial(builder.chunk, index, said, delta.stats, **usage_so_far(delta.stats), **info)
                [written] = await _written(partial(_alone, chunk_of), aside=len(said.logprobs) > FEW)
                yield _event(written)
        if include_usage:
            total = combined(in_order(stats), n)
            yield _event(_json(builder.closing(total, usage=usage(total), hotdraft=speculation(total))))
    except ApiError as error:
        yield _event(error.body.model_dump_json())
    yield _DONE


def _alone(make: Callable[[], Envelope]) -> list[Envelope]:
    return [make()]


async def _written(make: Callable[[], Sequence[Envelope]], *, aside: bool) -> list[str]:
    """What `make` makes as JSON; `aside` of the event loop where that takes its time."""

    def write() -> list[str]:
        return [_json(response) for response in make()]

    return await asyncio.to_thread(write) if aside else write()


def in_order(by_index: Mapping[int, T]) -> list[T]:
    return [by_index[index] for index in sorted(by_index)]


def finish_reason(delta: OutputDelta) -> ClientFinishReason | None:
    """Why a choice ended well, None if it goes on. Raises `ApiError` if it ended otherwise."""
    if delta.finish_reason is None or delta.finish_reason == "stop" or delta.finish_reason == "length":
        return delta.finish_reason
    if delta.finish_reason == "cancelled":
        raise ApiError(503, "The request was cancelled before it was finished.", code="cancelled")
    raise ApiError(500, "The server had an error while processing your request.")


def _event(content: str) -> str:
    return f"data: {content}\n\n"


def _json(response: Envelope) -> str:
    return response.model_dump_json(exclude_unset=True)
