"""OpenAI's endpoints over an `Engine`: models, chat completions, completions."""

import time
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import StreamingResponse

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.serving.engine.engine import Engine, ShuttingDownError
from hotdraft.serving.engine.waiting import QueueFullError
from hotdraft.serving.http.errors import ApiError, error_responses, unknown_model
from hotdraft.serving.http.openai.completion import sse_events, whole_completion
from hotdraft.serving.http.openai.prepare import RequestPreparer
from hotdraft.serving.http.openai.response_builder import ResponseBuilder
from hotdraft.serving.http.openai.responses import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    Envelope,
    ModelCard,
    ModelList,
)
from hotdraft.serving.http.openai.schema import ChatCompletionRequest, CompletionRequest, GenerationOptions
from hotdraft.serving.http.openai.token_stream import TokenStream
from hotdraft.serving.messages.request import GenerationRequest, ParameterError

DomainHeader = Annotated[
    str | None,
    Header(alias="X-Hotdraft-Domain", max_length=200, description="tags the traffic where metadata does not"),
]
_STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_ERRORS = error_responses(400, 401, 403, 404, 413, 415, 500, 503)


def openai_router(engine: Engine, config: HotdraftConfig) -> APIRouter:
    """Routes below /v1 that answer by `engine`, whose starting and stopping stays with the caller."""
    router = APIRouter(prefix="/v1", tags=["OpenAI"])
    prepare = RequestPreparer(engine, config)
    card = ModelCard(
        id=config.served_model_name,
        object="model",
        created=int(time.time()),
        owned_by="hotdraft",
        max_model_len=engine.max_model_len,
        weights=engine.computations["target"].weights,
    )

    @router.get("/models", responses=error_responses(401, 403))
    async def list_models() -> ModelList:
        return ModelList(object="list", data=[card])

    @router.get("/models/{name:path}", responses=error_responses(401, 403, 404))
    async def retrieve_model(name: str) -> ModelCard:
        if name != card.id:
            raise unknown_model(name, card.id)
        return card

    @router.post("/chat/completions", response_model=None, responses=_responses(ChatCompletion))
    async def chat_completions(
        body: ChatCompletionRequest, client: Request, domain: DomainHeader = None
    ) -> Response:
        requests, builder = await prepare.chat(body, client, domain)
        return await _answer(body, _submit(engine, requests, client, body.tells_only_prompts), builder)

    @router.post("/completions", response_model=None, responses=_responses(Completion))
    async def completions(body: CompletionRequest, client: Request, domain: DomainHeader = None) -> Response:
        requests, builder = await prepare.text(body, client, domain)
        return await _answer(body, _submit(engine, requests, client, body.tells_only_prompts), builder)

    return router


def _submit(engine: Engine, requests: list[GenerationRequest], client: Request, only_prompts: bool) -> TokenStream:
    try:
        return TokenStream(engine, requests, client, only_prompts=only_prompts)
    except QueueFullError as error:
        raise ApiError(503, str(error), code="queue_full", headers={"Retry-After": "1"}) from error
    except ShuttingDownError as error:
        headers = {"Retry-After": "5", "Connection": "close"}
        raise ApiError(503, str(error), code="shutting_down", headers=headers) from error
    except ParameterError:
        raise  # answered as those are that the parameters themselves raise
    except ValueError as error:
        raise ApiError(400, str(error)) from error


async def _answer(body: GenerationOptions, stream: TokenStream, builder: ResponseBuilder) -> Response:
    if body.stream:
        events = sse_events(
            stream,
            builder,
            n=body.choices,
            include_usage=body.include_usage,
            continuous_usage=body.continuous_usage,
        )
        return StreamingResponse(events, media_type="text/event-stream", headers=_STREAM_HEADERS)
    completion = await whole_completion(stream, builder, n=body.choices)
    return Response(completion, media_type="application/json")


def _responses(whole: type[Envelope]) -> dict[int | str, dict[str, Any]]:
    chunk = ChatCompletionChunk if whole is ChatCompletion else whole
    data = {"type": "string", "description": f"a {chunk.__name__} as JSON; of the last event [DONE]"}
    event = {"type": "object", "properties": {"data": data}, "required": ["data"]}
    return {200: {"model": whole, "content": {"text/event-stream": {"itemSchema": event}}}, **_ERRORS}
