"""The HTTP face: OpenAI's endpoints over an `Engine`, with health, version and Prometheus metrics."""

import time
import uuid
from collections.abc import AsyncIterator
from importlib import metadata
from typing import Annotated, Any

from fastapi import FastAPI, Header, Request, Response
from fastapi.responses import StreamingResponse
from prometheus_client import generate_latest

from pipeline.config import HotdraftConfig
from serving.engine import Engine, QueueFullError
from serving.errors import ApiError, ErrorResponse, add_error_handlers, context_length_exceeded, unknown_model
from serving.metrics import ServingMetrics
from serving.prompts import encode_chat, encode_text
from serving.request import DEFAULT_DOMAIN, GenerationRequest, OutputDelta
from serving.responses import (
    ChatBuilder,
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    Envelope,
    FinishReason,
    ModelCard,
    ModelList,
    ResponseBuilder,
    TextBuilder,
    speculation,
    usage,
)
from serving.schema import ChatCompletionRequest, CompletionRequest, GenerationOptions
from serving.token_stream import TokenStream

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default `max_tokens` of /v1/completions."""

_DONE = "data: [DONE]\n\n"
_PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"
"""Never OpenMetrics, even where the scraper prefers it: its encoder turns the colon of `vllm:` into `_`."""

DomainHeader = Annotated[
    str | None,
    Header(alias="X-Hotdraft-Domain", max_length=200, description="tags the traffic where metadata does not"),
]
_STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_ERRORS: dict[int | str, dict[str, Any]] = {status: {"model": ErrorResponse} for status in (400, 404, 500, 503)}


def create_app(engine: Engine, config: HotdraftConfig, *, metrics: ServingMetrics) -> FastAPI:
    """The application that serves `engine`; starting and stopping the engine stays with the caller."""
    app = FastAPI(title="hotdraft", version=installed_version())
    add_error_handlers(app)
    model_name = config.served_model_name
    started = int(time.time())
    card = ModelCard(
        id=model_name,
        object="model",
        created=started,
        owned_by="hotdraft",
        max_model_len=engine.max_model_len,
    )

    @app.get("/v1/models")
    async def list_models() -> ModelList:
        return ModelList(object="list", data=[card])

    @app.get("/v1/models/{name:path}", responses={404: _ERRORS[404]})
    async def retrieve_model(name: str) -> ModelCard:
        if name != model_name:
            raise unknown_model(name)
        return card

    @app.post("/v1/chat/completions", response_model=None, responses=_responses(ChatCompletion))
    async def chat_completions(
        body: ChatCompletionRequest, client: Request, domain: DomainHeader = None
    ) -> Response:
        check_model(body)
        prompt_ids = encode_chat(engine.tokenizer, [message.for_template() for message in body.messages])
        left = engine.max_model_len - len(prompt_ids)
        request = generation_request(body, domain, "chatcmpl", prompt_ids, default_tokens=left, param="messages")
        return await respond(body, request, ChatBuilder(request.request_id, model_name, int(time.time())), client)

    @app.post("/v1/completions", response_model=None, responses=_responses(Completion))
    async def completions(body: CompletionRequest, client: Request, domain: DomainHeader = None) -> Response:
        check_model(body)
        prompt_ids = encode_text(engine.tokenizer, body.prompt)
        default = min(DEFAULT_COMPLETION_TOKENS, engine.max_model_len - len(prompt_ids))
        request = generation_request(body, domain, "cmpl", prompt_ids, default_tokens=default, param="prompt")
        return await respond(body, request, TextBuilder(request.request_id, model_name, int(time.time())), client)

    @app.get("/health", responses={503: _ERRORS[503]})
    async def health() -> dict[str, str]:
        if not engine.is_alive:
            raise ApiError(503, "The engine is not running.", code="engine_dead")
        return {"status": "ok"}

    @app.get("/version")
    async def version() -> dict[str, str | int]:
        return {"version": app.version, "draft_version": engine.draft_version}

    @app.get("/metrics", response_class=Response)
    async def prometheus() -> Response:
        return Response(generate_latest(metrics.registry), headers={"Content-Type": _PROMETHEUS_TEXT})

    def check_model(body: GenerationOptions) -> None:
        if body.model != model_name:
            raise unknown_model(body.model)

    def generation_request(
        body: GenerationOptions,
        domain: str | None,
        prefix: str,
        prompt_ids: list[int],
        *,
        default_tokens: int,
        param: str,
    ) -> GenerationRequest:
        max_tokens = body.requested_tokens or max(default_tokens, 1)
        if len(prompt_ids) + max_tokens > engine.max_model_len:
            raise context_length_exceeded(engine.max_model_len, len(prompt_ids), max_tokens, param=param)
        try:
            params = body.sampling_params(max_tokens)
        except ValueError as error:
            raise ApiError(400, str(error)) from error
        return GenerationRequest(
            request_id=f"{prefix}-{uuid.uuid4().hex}",
            prompt_ids=tuple(prompt_ids),
            params=params,
            domain=body.domain or domain or DEFAULT_DOMAIN,
            record=body.store is not False,
        )

    async def respond(
        body: GenerationOptions, request: GenerationRequest, builder: ResponseBuilder, client: Request
    ) -> Response:
        try:
            stream = TokenStream(engine, request, client)
        except QueueFullError as error:
            raise ApiError(503, str(error), code="queue_full", headers={"Retry-After": "1"}) from error
        except ValueError as error:
            raise ApiError(400, str(error)) from error
        if body.stream:
            return StreamingResponse(
                sse_events(stream, builder, include_usage=body.include_usage),
                media_type="text/event-stream",
                headers=_STREAM_HEADERS,
            )
        completion = await whole_completion(stream, builder)
        return Response(completion.model_dump_json(exclude_unset=True), media_type="application/json")

    return app


def installed_version() -> str:
    """Version of the installed distribution; a bare checkout has none."""
    try:
        return metadata.version("hotdraft")
    except metadata.PackageNotFoundError:
        return "unknown"


async def whole_completion(stream: TokenStream, builder: ResponseBuilder) -> Envelope:
    """All of a request's text in one response. Raises `ApiError` if it did not finish."""
    text = []
    async for delta in stream:
        text.append(delta.text)
    return builder.whole("".join(text), finish_reason(delta), delta.stats)


async def sse_events(stream: TokenStream, builder: ResponseBuilder, *, include_usage: bool) -> AsyncIterator[str]:
    """Server-sent events of a request, ended by [DONE]; a failure on the way is an event with an error.

    With `include_usage`, as OpenAI defines it, every chunk has a null `usage` but the last, which has
    no choices. The last chunk with or without it says how the request was speculated.
    """
    unknown_usage: dict[str, Any] = {"usage": None} if include_usage else {}
    opened = False
    try:
        async for delta in stream:
            finish = finish_reason(delta) if delta.finish_reason else None
            if not opened:
                for chunk in builder.opening(delta.stats, **unknown_usage):
                    yield _event(chunk)
                opened = True
            info = {"hotdraft": speculation(delta.stats)} if finish else {}
            if finish and include_usage:
                yield _event(builder.chunk(delta.text, finish, delta.stats, **unknown_usage))
                yield _event(builder.closing(delta.stats, usage=usage(delta.stats), **info))
            elif finish or delta.text:
                yield _event(builder.chunk(delta.text, finish, delta.stats, **unknown_usage, **info))
    except ApiError as error:
        yield f"data: {error.body.model_dump_json()}\n\n"
    yield _DONE


def finish_reason(delta: OutputDelta) -> FinishReason:
    """Why a request ended well. Raises `ApiError` if it did not."""
    if delta.finish_reason == "stop" or delta.finish_reason == "length":
        return delta.finish_reason
    if delta.finish_reason == "cancelled":
        raise ApiError(503, "The request was cancelled before it was finished.", code="cancelled")
    raise ApiError(500, "The server had an error while processing your request.")


def _event(chunk: Envelope) -> str:
    return f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n"


def _responses(whole: type[Envelope]) -> dict[int | str, dict[str, Any]]:
    chunk = ChatCompletionChunk if whole is ChatCompletion else whole
    stream = {"schema": {"type": "string", "description": f"events with a {chunk.__name__} each, then [DONE]"}}
    return {200: {"model": whole, "content": {"text/event-stream": stream}}, **_ERRORS}
