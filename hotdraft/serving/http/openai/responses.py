"""What clients get back: OpenAI's response shapes.

Responses are serialised with `exclude_unset`: a field that was never given is absent, while one given
as None is null, which is how OpenAI's stream chunks tell `finish_reason` and `usage`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import BaseModel

from hotdraft.serving.http.openai.logprobs import ChatLogprobs, TextLogprobs
from hotdraft.serving.messages.request import COUNTED, RequestStats

ClientFinishReason = Literal["stop", "length"]


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
    """By the draft model."""
    accepted_tokens: int
    """Of these."""
    guessed_tokens: int
    """From text: `engine.proposers` has `suffix`."""
    accepted_guesses: int


class AssistantMessage(BaseModel):
    role: Literal["assistant"]
    content: str


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: ClientFinishReason
    stop_reason: str | int | None


class MessageDelta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(BaseModel):
    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None
    finish_reason: ClientFinishReason | None
    stop_reason: str | int | None = None
    """vLLM's: the stop string or token that ended the answer, None where none did."""


class TextChoice(BaseModel):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: ClientFinishReason | None
    stop_reason: str | int | None


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
    weights: str
    """As they are served: their dtype, or w8a16 where 8 bits were made of them."""


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelCard]


def usage(stats: RequestStats) -> Usage:
    return Usage(
        prompt_tokens=stats.prompt_tokens,
        completion_tokens=stats.completion_tokens,
        total_tokens=stats.prompt_tokens + stats.completion_tokens,
        completion_tokens_details=CompletionTokensDetails(
            accepted_prediction_tokens=(accepted := stats.accepted_tokens + stats.accepted_guesses),
            rejected_prediction_tokens=stats.drafted_tokens + stats.guessed_tokens - accepted,
        ),
    )


def speculation(stats: RequestStats) -> SpeculationInfo:
    return SpeculationInfo.model_validate(stats, from_attributes=True)


def combined(stats: Sequence[RequestStats], choices: int) -> RequestStats:
    """Of several answers as of one request: `choices` answers in a row share a prompt, which counts once."""
    return replace(
        max(stats, key=lambda one: one.draft_version),
        prompt_tokens=sum(one.prompt_tokens for one in stats[::choices]),
        **{name: sum(getattr(one, name) for one in stats) for name in ("rounds", *COUNTED)},
    )
