"""From what a client asks to what the engine is asked, and to who builds the answer of what it says."""

import asyncio
import time
import uuid
from collections.abc import Sequence

from fastapi import Request

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.serving.engine.detokenizer import Detokenizer
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.http.client_identity import answer_scope, client_identity
from hotdraft.serving.http.errors import ApiError, context_length_exceeded, unknown_model
from hotdraft.serving.http.openai.logprobs import MAX_TOLD, TextOffsets, TokenTexts, prompt_offsets
from hotdraft.serving.http.openai.response_builder import ChatBuilder, EchoedPrompt, TextBuilder
from hotdraft.serving.http.openai.schema import ChatCompletionRequest, CompletionRequest, GenerationOptions
from hotdraft.serving.http.openai.token_stream import unless_gone
from hotdraft.serving.messages.prompt_encoder import PromptEncoder, decode
from hotdraft.serving.messages.request import DEFAULT_DOMAIN, UNRECORDED_DOMAIN, GenerationRequest

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default `max_tokens` of /v1/completions."""
MAX_ECHOED = 2**22
"""Characters of prompts that several answers to one request may begin with together."""


class RequestPreparer:
    """Gives one request to the engine for every answer that a client wants, those of each prompt in a row.

    Raises `ApiError` and `PromptError` for what cannot be answered.
    """

    def __init__(self, engine: Engine, config: HotdraftConfig) -> None:
        self._engine = engine
        self._config = config
        self._encoder = PromptEncoder(engine)
        self._texts = TokenTexts(engine.tokenizer)

    async def chat(
        self, body: ChatCompletionRequest, client: Request, domain: str | None
    ) -> tuple[list[GenerationRequest], ChatBuilder]:
        self._check(body, prompts=1)
        messages = [message.for_template() for message in body.messages]
        prompt_ids = await unless_gone(client, self._encoder.chat(messages, body.told_to_template))
        left = self._engine.max_model_len - len(prompt_ids)
        max_tokens = self._max_tokens(body, [prompt_ids], default=left, param="messages")
        builder = ChatBuilder(*self._about("chatcmpl", body))
        return self._requests(body, client, domain, builder.request_id, [prompt_ids], max_tokens), builder

    async def text(
        self, body: CompletionRequest, client: Request, domain: str | None
    ) -> tuple[list[GenerationRequest], TextBuilder]:
        self._check(body, prompts=len(body.prompt))
        prompts = await unless_gone(client, self._encoder.texts(body.prompt, body.has_special_tokens))
        left = self._engine.max_model_len - max(map(len, prompts))
        max_tokens = self._max_tokens(body, prompts, default=min(DEFAULT_COMPLETION_TOKENS, left), param="prompt")
        echoed = await asyncio.to_thread(self._echoed, body) if body.echo else []

        def detokenizer(index: int) -> Detokenizer:
            backend = self._engine.tokenizer.backend_tokenizer
            return Detokenizer(backend, self._engine.special_ids, prompts[index // body.choices])

        builder = TextBuilder(*self._about("cmpl", body), detokenizer, echoed)
        return self._requests(body, client, domain, builder.request_id, prompts, max_tokens), builder

    def _about(self, kind: str, body: GenerationOptions) -> tuple[str, str, int, TokenTexts, bool]:
        """What a builder has to know: a new id, the model, now, how tokens read, and whether log-probs are told."""
        wants_logprobs = body.wanted_logprobs is not None
        return f"{kind}-{uuid.uuid4().hex}", body.model, int(time.time()), self._texts, wants_logprobs

    def _echoed(self, body: CompletionRequest) -> list[EchoedPrompt]:
        """What each choice begins with."""
        prompts = [self._echo(prompt, body) for prompt in body.prompt]
        echoed = [prompt for prompt in prompts for _ in range(body.choices)]
        characters = sum(len(prompt.text) for prompt in echoed)
        if characters > MAX_ECHOED and len(echoed) > 1:
            says = f"{len(echoed)} answers would echo {characters} characters: {MAX_ECHOED} are allowed."
            raise ApiError(400, says, param="echo")
        return echoed

    def _echo(self, prompt: str | list[int], body: CompletionRequest) -> EchoedPrompt:
        told = body.wanted_logprobs is not None
        if isinstance(prompt, str):
            offsets = prompt_offsets(self._engine.tokenizer, prompt, body.has_special_tokens) if told else []
            return EchoedPrompt(prompt, offsets)
        detokenizer = Detokenizer(self._engine.tokenizer.backend_tokenizer, silent=frozenset())
        offsets = TextOffsets(detokenizer).following(prompt) if told else []
        return EchoedPrompt(decode(self._engine.tokenizer, prompt), offsets)

    def _check(self, body: GenerationOptions, prompts: int) -> None:
        """What is wrong with a request whatever its prompts say."""
        if body.model != self._config.served_model_name:
            raise unknown_model(body.model, self._config.served_model_name)
        answers, allowed = prompts * body.choices, self._config.engine.max_queue
        if answers > allowed:
            raise ApiError(400, f"{answers} answers are asked for at once, {allowed} are allowed.", param="n")

    def _max_tokens(
        self, body: GenerationOptions, prompts: Sequence[Sequence[int]], *, default: int, param: str
    ) -> int:
        """Of each answer, where there is room for it."""
        max_tokens = max(default if body.requested_tokens is None else body.requested_tokens, 1)
        longest, limit = max(map(len, prompts)), self._engine.max_model_len
        if longest + max_tokens > limit:
            raise context_length_exceeded(limit, longest, max_tokens, param=param)
        return max_tokens

    def _requests(
        self,
        body: GenerationOptions,
        client: Request,
        domain: str | None,
        response_id: str,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
    ) -> list[GenerationRequest]:
        defaults = self._engine.sampling_defaults if self._config.server.sampling_defaults == "model" else {}
        params = [body.sampling_params(max_tokens, choice, defaults) for choice in range(body.choices)]
        answers = [(prompt_ids, one) for prompt_ids in map(tuple, prompts) for one in params]
        identity = client_identity(client, self._config.server)
        scope = answer_scope(client, self._config, body.cache_salt)
        record = body.store is not False and not body.tells_only_prompts
        requests = [
            GenerationRequest(
                request_id=response_id if len(answers) == 1 else f"{response_id}-{index}",
                prompt_ids=prompt_ids,
                params=one,
                domain=(body.domain or domain or DEFAULT_DOMAIN) if record else UNRECORDED_DOMAIN,
                record=record,
                client=identity,
                scope=scope,
            )
            for index, (prompt_ids, one) in enumerate(answers)
        ]
        told = sum(map(_logprobs, requests))
        if told > MAX_TOLD and len(requests) > 1:
            says = f"Up to {told} log-probs of {len(requests)} answers: {MAX_TOLD} are allowed; set max_tokens."
            raise ApiError(400, says, param="logprobs")
        return requests


def _logprobs(request: GenerationRequest) -> int:
    """How many are told of a request at most."""
    params = request.params
    of_prompt = 0 if params.prompt_logprobs is None else len(request.prompt_ids) * (1 + params.prompt_logprobs)
    return of_prompt + (0 if params.logprobs is None else params.max_tokens * (1 + params.logprobs))
