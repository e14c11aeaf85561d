"""OpenAI's endpoints over an `Engine`: models, chat completions, completions."""

import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import StreamingResponse

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.serving.engine.engine import Engine, ShuttingDownError
from hotdraft.serving.engine.scheduler import QueueFullError
from hotdraft.serving.http.client_identity import client_identity
from hotdraft.serving.http.errors import ApiError, context_length_exceeded, error_responses, unknown_model
from hotdraft.serving.http.openai.completion import sse_events, whole_completion
from hotdraft.serving.http.openai.response_builder import ChatBuilder, ResponseBuilder, TextBuilder
from hotdraft.serving.http.openai.responses import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    Envelope,
    ModelCard,
    ModelList,
)
from hotdraft.serving.http.openai.schema import ChatCompletionRequest, CompletionRequest, GenerationOptions
from hotdraft.serving.http.openai.token_stream import TokenStream, unless_gone
from hotdraft.serving.messages.prompts import PromptEncoder, decode
from hotdraft.serving.messages.request import DEFAULT_DOMAIN, UNRECORDED_DOMAIN, GenerationRequest

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default `max_tokens` of /v1/completions."""

DomainHeader = Annotated[
    str | None,
    Header(alias="X-Hotdraft-Domain", max_length=200, description="tags the traffic where metadata does not"),
]
_STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_ERRORS = error_responses(400, 401, 403, 404, 413, 415, 500, 503)


def openai_router(engine: Engine, config: HotdraftConfig) -> APIRouter:
    """Routes below /v1 that answer by `engine`, whose starting and stopping stays with the caller."""
    router = APIRouter(prefix="/v1", tags=["OpenAI"])
    encoder = PromptEncoder(engine)
    model_name = config.served_model_name
    card = ModelCard(
        id=model_name,
        object="model",
        created=int(time.time()),
        owned_by="hotdraft",
        max_model_len=engine.max_model_len,
    )

    def text_of(token_id: int) -> str:
        return decode(engine.tokenizer, [token_id])

    @router.get("/models", responses=error_responses(401, 403))
    async def list_models() -> ModelList:
        return ModelList(object="list", data=[card])

    @router.get("/models/{name:path}", responses=error_responses(401, 403, 404))
    async def retrieve_model(name: str) -> ModelCard:
        if name != model_name:
            raise unknown_model(name)
        return card

    @router.post("/chat/completions", response_model=None, responses=_responses(ChatCompletion))
    async def chat_completions(
        body: ChatCompletionRequest, client: Request, domain: DomainHeader = None
    ) -> Response:
        check(body, prompts=1)
        messages = [message.for_template() for message in body.messages]
        prompt_ids = await unless_gone(client, encoder.chat(messages))
        left = engine.max_model_len - len(prompt_ids)
        response_id = f"chatcmpl-{uuid.uuid4().hex}"
        requests = generation_requests(
            body, domain, client, response_id, [prompt_ids], default_tokens=left, param="messages"
        )
        logprobs = body.wanted_logprobs is not None
        builder = ChatBuilder(response_id, model_name, int(time.time()), text_of, logprobs)
        return await respond(body, requests, builder, client)

    @router.post("/completions", response_model=None, responses=_responses(Completion))
    async def completions(body: CompletionRequest, client: Request, domain: DomainHeader = None) -> Response:
        check(body, prompts=len(body.prompt))
        prompts = await unless_gone(client, encoder.texts(body.prompt))
        default = min(DEFAULT_COMPLETION_TOKENS, engine.max_model_len - max(map(len, prompts)))
        response_id = f"cmpl-{uuid.uuid4().hex}"
        requests = generation_requests(
            body, domain, client, response_id, prompts, default_tokens=default, param="prompt"
        )
        texts = [p if isinstance(p, str) else decode(engine.tokenizer, p) for p in body.prompt] if body.echo else []
        echoed = [text for text in texts for _ in range(body.choices)]
        logprobs = body.wanted_logprobs is not None
        builder = TextBuilder(response_id, model_name, int(time.time()), text_of, logprobs, echoed)
        return await respond(body, requests, builder, client)

    def check(body: GenerationOptions, prompts: int) -> None:
        """What is wrong with a request whatever its prompts say."""
        if body.model != model_name:
            raise unknown_model(body.model)
        answers = prompts * body.choices
        if answers > config.engine.max_queue:
            raise ApiError(
                400, f"{answers} answers are asked for at once, {config.engine.max_queue} are allowed.", param="n"
            )

    def generation_requests(
        body: GenerationOptions,
        domain: str | None,
        client: Request,
        response_id: str,
        prompts: Sequence[Sequence[int]],
        *,
        default_tokens: int,
        param: str,
    ) -> list[GenerationRequest]:
        """The answers of each prompt in a row."""
        max_tokens = body.requested_tokens or max(default_tokens, 1)
        longest = max(map(len, prompts))
        if longest + max_tokens > engine.max_model_len:
            raise context_length_exceeded(engine.max_model_len, longest, max_tokens, param=param)
        answers = len(prompts) * body.choices
        record = body.store is not False
        try:
            params = [body.sampling_params(max_tokens, choice) for choice in range(body.choices)]
        except ValueError as error:
            raise ApiError(400, str(error)) from error
        return [
            GenerationRequest(
                request_id=response_id if answers == 1 else f"{response_id}-{index * body.choices + choice}",
                prompt_ids=tuple(prompt_ids),
                params=params[choice],
                domain=(body.domain or domain or DEFAULT_DOMAIN) if record else UNRECORDED_DOMAIN,
                record=record,
                client=client_identity(client, config.server),
            )
            for index, prompt_ids in enumerate(prompts)
            for choice in range(body.choices)
        ]

    async def respond(
        body: GenerationOptions, requests: list[GenerationRequest], builder: ResponseBuilder, client: Request
    ) -> Response:
        try:
            stream = TokenStream(engine, requests, client)
        except QueueFullError as error:
            raise ApiError(503, str(error), code="queue_full", headers={"Retry-After": "1"}) from error
        except ShuttingDownError as error:
            headers = {"Retry-After": "5", "Connection": "close"}
            raise ApiError(503, str(error), code="shutting_down", headers=headers) from error
        except ValueError as error:
            raise ApiError(400, str(error)) from error
        if body.stream:
            return StreamingResponse(
                sse_events(stream, builder, n=body.choices, include_usage=body.include_usage),
                media_type="text/event-stream",
                headers=_STREAM_HEADERS,
            )
        completion = await whole_completion(stream, builder, n=body.choices)
        return Response(completion.model_dump_json(exclude_unset=True), media_type="application/json")

    return router


def _responses(whole: type[Envelope]) -> dict[int | str, dict[str, Any]]:
    chunk = ChatCompletionChunk if whole is ChatCompletion else whole
    data = {"type": "string", "description": f"a {chunk.__name__} as JSON; of the last event [DONE]"}
    event = {"type": "object", "properties": {"data": data}, "required": ["data"]}
    return {200: {"model": whole, "content": {"text/event-stream": {"itemSchema": event}}}, **_ERRORS}
