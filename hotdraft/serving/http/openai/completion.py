"""A client's choices as one response, or as server-sent events."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from hotdraft.serving.http.errors import ApiError
from hotdraft.serving.http.openai.response_builder import ChoiceText, ResponseBuilder
from hotdraft.serving.http.openai.responses import ClientFinishReason, Envelope, combined, speculation, usage
from hotdraft.serving.http.openai.token_stream import TokenStream
from hotdraft.serving.messages.request import OutputDelta, RequestStats, TokenLogprob

T = TypeVar("T")

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
        choice.finish_reason = finish_reason(delta)
        stats[index] = delta.stats
    whole = partial(_whole, builder, in_order(choices), combined(in_order(stats), n))
    is_long = any(choice.logprobs or choice.prompt_logprobs for choice in choices.values())
    return await asyncio.to_thread(whole) if is_long else whole()


def _whole(builder: ResponseBuilder, choices: list[ChoiceText], stats: RequestStats) -> str:
    return _json(builder.whole(choices, stats))


async def sse_events(
    stream: TokenStream, builder: ResponseBuilder, *, n: int, include_usage: bool
) -> AsyncIterator[str]:
    """Server-sent events of a request, ended by [DONE]; a failure on the way is an event with an error.

    With `include_usage`, as OpenAI defines it, every chunk has a null `usage` but the last, which has
    no choices. The last chunk with or without it says how the request was speculated.
    """
    unknown_usage: dict[str, Any] = {"usage": None} if include_usage else {}
    stats: dict[int, RequestStats] = {}
    try:
        async for index, delta in stream:
            said = ChoiceText(delta.text, finish_reason(delta), list(delta.logprobs or ()))
            if index not in stats:
                told = delta.prompt_logprobs or ()
                opening = partial(_opening, builder, index, told, delta.stats, unknown_usage)
                for event in await asyncio.to_thread(opening) if told else opening():
                    yield event
            stats[index] = delta.stats
            if said.finish_reason or said.text or said.logprobs:
                ends = stream.is_finished and not include_usage
                info = {"hotdraft": speculation(combined(in_order(stats), n))} if ends else {}
                yield _event(builder.chunk(index, said, delta.stats, **unknown_usage, **info))
        if include_usage:
            total = combined(in_order(stats), n)
            yield _event(builder.closing(total, usage=usage(total), hotdraft=speculation(total)))
    except ApiError as error:
        yield f"data: {error.body.model_dump_json()}\n\n"
    yield _DONE


def _opening(
    builder: ResponseBuilder, index: int, told: Sequence[TokenLogprob], stats: RequestStats, extra: dict[str, Any]
) -> list[str]:
    return [_event(chunk) for chunk in builder.opening(index, told, stats, **extra)]


def in_order(by_index: Mapping[int, T]) -> list[T]:
    return [by_index[index] for index in sorted(by_index)]


def finish_reason(delta: OutputDelta) -> ClientFinishReason | None:
    """Why a choice ended well, None if it goes on. Raises `ApiError` if it ended otherwise."""
    if delta.finish_reason is None or delta.finish_reason == "stop" or delta.finish_reason == "length":
        return delta.finish_reason
    if delta.finish_reason == "cancelled":
        raise ApiError(503, "The request was cancelled before it was finished.", code="cancelled")
    raise ApiError(500, "The server had an error while processing your request.")


def _event(chunk: Envelope) -> str:
    return f"data: {_json(chunk)}\n\n"


def _json(response: Envelope) -> str:
    return response.model_dump_json(exclude_unset=True)
