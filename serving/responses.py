"""What clients get back: OpenAI's response shapes, and the two builders that fill them.

Responses are serialised with `exclude_unset`: a field that was never given is absent, while one given
as None is null, which is how OpenAI's stream chunks tell `finish_reason` and `usage`.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import BaseModel

from serving.request import RequestStats

FinishReason = Literal["stop", "length"]


class CompletionTokensDetails(BaseModel):
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: CompletionTokensDetails


class SpeculationInfo(BaseModel):
    """How the request was decoded; our own field beside OpenAI's."""

    draft_version: int
    rounds: int
    drafted_tokens: int
    accepted_tokens: int


class AssistantMessage(BaseModel):
    role: Literal["assistant"]
    content: str


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: None
    finish_reason: FinishReason


class MessageDelta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(BaseModel):
    index: int
    delta: MessageDelta
    logprobs: None
    finish_reason: FinishReason | None


class TextChoice(BaseModel):
    index: int
    text: str
    logprobs: None
    finish_reason: FinishReason | None


class Envelope(BaseModel):
    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage | None = None
    hotdraft: SpeculationInfo | None = None


class ChatCompletion(Envelope):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class ChatCompletionChunk(Envelope):
    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]


class Completion(Envelope):
    """A text completion, and likewise each chunk of its stream."""

    object: Literal["text_completion"]
    choices: list[TextChoice]


class ModelCard(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelCard]


def usage(stats: RequestStats) -> Usage:
    return Usage(
        prompt_tokens=stats.prompt_tokens,
        completion_tokens=stats.completion_tokens,
        total_tokens=stats.prompt_tokens + stats.completion_tokens,
        completion_tokens_details=CompletionTokensDetails(
            accepted_prediction_tokens=stats.accepted_tokens,
            rejected_prediction_tokens=stats.drafted_tokens - stats.accepted_tokens,
        ),
    )


def speculation(stats: RequestStats) -> SpeculationInfo:
    return SpeculationInfo(
        draft_version=stats.draft_version,
        rounds=stats.rounds,
        drafted_tokens=stats.drafted_tokens,
        accepted_tokens=stats.accepted_tokens,
    )


class ResponseBuilder(Protocol):
    """Turns an endpoint's text into that endpoint's responses; `extra` is `usage` and `hotdraft`."""

    @property
    def request_id(self) -> str: ...

    def whole(self, text: str, finish_reason: FinishReason, stats: RequestStats) -> Envelope: ...

    def opening(self, stats: RequestStats, **extra: Any) -> list[Envelope]: ...

    def chunk(
        self, text: str, finish_reason: FinishReason | None, stats: RequestStats, **extra: Any
    ) -> Envelope: ...

    def closing(self, stats: RequestStats, **extra: Any) -> Envelope:
        """The chunk without choices that carries the usage."""
        ...


@dataclass(frozen=True)
class _Builder:
    request_id: str
    model: str
    created: int

    def _head(self, stats: RequestStats) -> dict[str, Any]:
        return {
            "id": self.request_id,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"hotdraft-draft-v{stats.draft_version}",
        }


class ChatBuilder(_Builder):
    def whole(self, text: str, finish_reason: FinishReason, stats: RequestStats) -> ChatCompletion:
        choice = ChatChoice(
            index=0,
            message=AssistantMessage(role="assistant", content=text),
            logprobs=None,
            finish_reason=finish_reason,
        )
        return ChatCompletion(
            object="chat.completion",
            choices=[choice],
            usage=usage(stats),
            hotdraft=speculation(stats),
            **self._head(stats),
        )

    def opening(self, stats: RequestStats, **extra: Any) -> list[Envelope]:
        return [self._chunk(MessageDelta(role="assistant", content=""), None, stats, **extra)]

    def chunk(
        self, text: str, finish_reason: FinishReason | None, stats: RequestStats, **extra: Any
    ) -> ChatCompletionChunk:
        return self._chunk(MessageDelta(content=text) if text else MessageDelta(), finish_reason, stats, **extra)

    def closing(self, stats: RequestStats, **extra: Any) -> ChatCompletionChunk:
        return ChatCompletionChunk(object="chat.completion.chunk", choices=[], **extra, **self._head(stats))

    def _chunk(
        self, delta: MessageDelta, finish_reason: FinishReason | None, stats: RequestStats, **extra: Any
    ) -> ChatCompletionChunk:
        choice = ChatChunkChoice(index=0, delta=delta, logprobs=None, finish_reason=finish_reason)
        return ChatCompletionChunk(object="chat.completion.chunk", choices=[choice], **extra, **self._head(stats))


class TextBuilder(_Builder):
    def whole(self, text: str, finish_reason: FinishReason, stats: RequestStats) -> Completion:
        return self.chunk(text, finish_reason, stats, usage=usage(stats), hotdraft=speculation(stats))

    def opening(self, stats: RequestStats, **extra: Any) -> list[Envelope]:
        return []

    def chunk(self, text: str, finish_reason: FinishReason | None, stats: RequestStats, **extra: Any) -> Completion:
        choice = TextChoice(index=0, text=text, logprobs=None, finish_reason=finish_reason)
        return Completion(object="text_completion", choices=[choice], **extra, **self._head(stats))

    def closing(self, stats: RequestStats, **extra: Any) -> Completion:
        return Completion(object="text_completion", choices=[], **extra, **self._head(stats))
